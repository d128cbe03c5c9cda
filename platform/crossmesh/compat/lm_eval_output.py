"""lm-evaluation-harness, run as a program: what its output says. Text only; nothing is imported."""

import re

_PROGRESS = re.compile(r"Requesting API:.*?(\d+)/(\d+)")


def requests_done(line: str) -> tuple[int, int] | None:
    """Requests that are answered, and all of them, in a line of its progress bar."""
    return (int(match[1]), int(match[2])) if (match := _PROGRESS.search(line)) else None


def needs_likelihoods(output: str) -> bool:
    """Whether it ended because a task needs log-probabilities of prompts, which an endpoint of chat completions does not give."""
    return "NotImplementedError" in output and "oglikelihood" in output
