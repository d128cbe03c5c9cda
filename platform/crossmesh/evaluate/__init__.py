"""Whether a model's answers work: tasks, sampling from an endpoint, sandboxed judging and pass@k.

Knows OpenAI-compatible endpoints only, never an engine; and problems only, never how a model was trained.
"""
