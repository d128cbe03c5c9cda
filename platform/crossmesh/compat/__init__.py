"""The one border to parts of other libraries that they do not promise to keep: private modules and attributes, and the words of errors.

One file per library. A function says what is wanted; how a version of the library gives it is known here only. A part that is missing is a
`MissingPartError`, raised where the part is needed; no version is refused for its number. `tests/canary/` tries every part, also on the
newest releases (`make canary`).
"""
