"""A comparison as files: HTML, Markdown and JSON."""
