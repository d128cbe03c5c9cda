"""Runs a compiler or a trace as a process of its own, and is the frame of that process.

A worker gets a list of questions as JSON on stdin and writes one JSON line on stdout for each, as soon as it has the answer, so that
what is finished is kept whatever happens to the rest; all else it says goes to a log. What is asked and answered is known to
`compile_tpu.py` and `trace_gpu.py`. Imports no framework.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.plan.store.store import WORKERS, versions

_TICK_S = 1.0
_SHOWN = 2000
"""Last characters of a log that an error shows."""
_MODULES = {"tpu": "crossmesh.plan.compilers.compile_tpu", "gpu": "crossmesh.plan.compilers.trace_gpu"}

Fields = Mapping[str, Any]
"""A question (`store.Question.fields`) or an answer; plain JSON."""


@dataclass(frozen=True)
class WorkerAnswer:
    """The answer to one of the questions."""

    index: int
    answer: Fields
    seconds: float
    """Since the one before, or since the start."""
    versions: Mapping[str, str]
    """Of the libraries that the worker had."""


def run_compiler_worker(kind: str, questions: Sequence[Fields], log: Path, on_tick: Callable[[int, float], None]) -> Iterator[WorkerAnswer]:
    """Start the worker that answers questions of `kind` (`store.KINDS`) and yield its answers, in the order of `questions`, as they come.

    `on_tick(index, seconds)` is called about every second with the question that is worked on and for how long. The worker ends with the
    iteration: also when that is left early, or interrupted.

    Raises `InputError` with the worker's own message for a question that has no answer, `CrossmeshError` when the worker died.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    described = environment(WORKERS[kind])
    command = [described.python or sys.executable, "-m", _MODULES[kind]]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stream,
            env={**os.environ, **described.variables},
            bufsize=0,  # Or `select` would not see a line that came with the one before.
            start_new_session=True,  # Ctrl-C reaches us alone, and we end it.
        )
        try:
            yield from _answers(process, questions, log, on_tick)
        finally:
            process.kill()
            process.wait()


def _answers(process: Any, questions: Sequence[Fields], log: Path, on_tick: Callable[[int, float], None]) -> Iterator[WorkerAnswer]:
    with contextlib.suppress(BrokenPipeError):  # It died at once; its log says why.
        process.stdin.write(json.dumps(list(questions)).encode())
        process.stdin.close()
    for index in range(len(questions)):
        start = time.monotonic()
        while not select.select([process.stdout], [], [], _TICK_S)[0]:
            on_tick(index, time.monotonic() - start)
        line = process.stdout.readline()
        if not line:
            raise CrossmeshError(f"The worker of a plan ended with code {process.wait()} and no answer. {_last(log)}")
        message = json.loads(line)
        if "error" in message:
            raise InputError(message["error"])
        yield WorkerAnswer(index, message["answer"], time.monotonic() - start, message["versions"])


def _last(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:].strip()
    return f"Its log, {log}, ends with:\n{text}" if text else f"Its log, {log}, is empty."


def answer_questions(kind: str, answer: Callable[[Fields], Fields]) -> None:
    """Be a worker: answer each question on stdin with `answer`, and say which versions of the libraries made it.

    `kind` is the store's (`store.KINDS`).

    What libraries write on stdout meanwhile goes to stderr. A `CrossmeshError` is told to the driver; anything else ends the process, and
    so does the end of the driver.
    """
    questions = json.load(sys.stdin)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        for question in questions:
            try:
                message: dict[str, Any] = {"answer": answer(question), "versions": versions(kind)}
            except CrossmeshError as error:
                message = {"error": str(error)}
            out.write(json.dumps(message) + "\n")
            out.flush()


def _end_with(parent: int) -> None:
    """End this process once the one that started it is gone, however that died: compilers take hours of CPU and most of the memory."""
    while os.getppid() == parent:
        time.sleep(_TICK_S)
    os._exit(1)
