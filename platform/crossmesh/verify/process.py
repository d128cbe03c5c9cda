"""Measurements in a process of their own: the frameworks stay out of the driver, and every measurement starts from nothing.

The process runs in the worker environment of its kind, takes one JSON request and answers with lines of JSON: progress, then the result.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import Any

from crossmesh.console import Stage
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.verify.measure import Progress

Request = Mapping[str, Any]
Measurement = Callable[[Request, Progress], dict[str, Any]]

_TAIL = 2000


def measure(
    kind: str, module: str, request: Request, log: Path, stage: Stage, variables: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Run `module` in the environment `kind` and return what it measured.

    Args:
        kind: worker kind of the registry, on a CPU.
        module: full name of a module that ends with `answer(...)`.
        request: JSON values.
        log: file for what the process says on stderr.
        stage: hears of progress.
        variables: environment variables beside those of the kind.

    Raises:
        InputError: the measurement says what the user can put right.
        CrossmeshError: the measurement failed; the message ends with what it said last and names the log.
    """
    worker = environment(kind).with_variables(**variables)
    command = [worker.python or sys.executable, "-m", module, json.dumps(request)]
    log.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] | None = None
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **worker.variables}) as process,
    ):
        try:
            for line in process.stdout or ():
                message = json.loads(line)
                if "progress" in message:
                    stage.progress(*message["progress"])
                if "refused" in message:
                    raise InputError(message["refused"])
                result = message.get("result", result)
        finally:
            process.kill()
    if result is None:
        raise CrossmeshError(f"The measurement {module} failed: {log.read_text(encoding='utf-8')[-_TAIL:].strip()}\nAll of it is in {log}.")
    return result


def by_model(request: Request, progress: Progress, engine: str, measure_one: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """`measure_one` of each of the request's `models`, by name; one that the engine does not compute has its reason instead."""
    results: dict[str, Any] = {}
    for done, (name, model) in enumerate(request["models"].items()):
        progress(f"models on {engine}", done, len(request["models"]))
        try:
            results[name] = measure_one(model)
        except InputError as error:
            results[name] = {"refused": str(error)}
    return results


def answer_measurement(measurement: Measurement) -> None:
    """Answer the request on the command line; the last line of a module that `measure` runs."""
    # Libraries print, also from C and in processes of theirs; what they say belongs into the log.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**values: object) -> None:
        channel.write(json.dumps(values) + "\n")
        channel.flush()

    with redirect_stdout(sys.stderr):
        try:
            say(result=measurement(json.loads(sys.argv[1]), lambda *progress: say(progress=progress)))
        except InputError as error:
            say(refused=str(error))
