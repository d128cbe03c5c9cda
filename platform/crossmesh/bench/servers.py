"""The servers that ours is measured against: vLLM alone, and the stock application of `ray.serve.llm`. Same engine, same arguments.

On a CPU each has its own best layout of processes and threads, which are no arguments of the engine: vLLM's defaults (a worker process
whose threads are bound to cores), and for vLLM alone also the layout of ours (`bare_vllm.py`), of which the faster one counts.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from crossmesh.bench.load import Target
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.environments import WorkerEnvironment, environment, python_path
from crossmesh.errors import CrossmeshError
from crossmesh.ports import free_port, listens_alone
from crossmesh.serve.vllm.settings import CPU_VARIABLES, EngineSettings

_POLL_S = 0.5
_TAIL = 2000
_GRACE_S = 20.0

Ready = Callable[[], Target]
"""Waits until a server that is starting answers, once. Raises `CrossmeshError` when it does not."""


@contextmanager
def bare_server(spec: ExperimentSpec, settings: EngineSettings, log: Path, *, like_ours: bool = False) -> Iterator[Ready]:
    """The OpenAI server of vLLM itself on a free port, starting, and ended with the block.

    With its own defaults of processes and threads, or `like_ours`.
    """
    worker = environment(settings.kind, spec.hardware.slice.device)
    variables = {**os.environ, **worker.variables, **settings.variables} if like_ours else with_defaults(worker, settings)
    module = "crossmesh.serve.vllm.bare_vllm" if like_ours else "vllm.entrypoints.openai.api_server"
    port = free_port()
    command = [worker.python or sys.executable, "-m", module, *bare_arguments(settings, port)]
    target = Target(f"http://127.0.0.1:{port}", settings.models[0])
    with _process(command, variables, log, speaks=False) as process:

        def ready() -> Target:
            _wait_until_it_answers(target, process, log, spec.serve.start_timeout_s)
            return target

        yield ready


def with_defaults(worker: WorkerEnvironment, settings: EngineSettings) -> dict[str, str]:
    """This process's variables and those of an engine, without ours for threads: what vLLM decides by itself then is its default."""
    asked = {**os.environ, **worker.variables, **settings.variables}
    ours = {"OMP_NUM_THREADS", *CPU_VARIABLES} if "OMP_NUM_THREADS" in worker.variables else set()
    return {name: value for name, value in asked.items() if name not in ours}


def bare_arguments(settings: EngineSettings, port: int) -> list[str]:
    """The command line of vLLM's server that has the engine arguments of `settings`."""
    loading = settings.llm_config["model_loading_config"]
    arguments = ["--model", loading["model_source"], "--served-model-name", loading["model_id"], "--host", "127.0.0.1", "--port", str(port)]
    for name, value in settings.engine_kwargs.items():
        arguments += _flag(name.replace("_", "-"), value)
    return arguments


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]


@contextmanager
def plain_server(spec: ExperimentSpec, settings: EngineSettings, log: Path) -> Iterator[Ready]:
    """The application of `build_openai_app` on a Ray of its own (`plain.py`), starting, and ended with the block."""
    asked = {
        "storage": spec.storage.root,
        "hardware": spec.hardware.name,
        "catalogue": spec.hardware.catalogue,
        "kind": settings.kind,
        "variables": {name: value for name, value in settings.variables.items() if name not in CPU_VARIABLES},
        "llm_config": dict(settings.llm_config),
        "timeout_s": spec.serve.start_timeout_s,
    }
    variables = {**os.environ, "PYTHONPATH": python_path(), "RAY_ADDRESS": "local"}
    with _process([sys.executable, "-m", "crossmesh.bench.plain"], variables, log, speaks=True) as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the process of the plain server has no pipes")
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        output = process.stdout

        def ready() -> Target:
            line = output.readline()
            said = json.loads(line) if line else {"error": _ended("The plain server of ray.serve.llm", log)}
            if "error" in said:
                raise CrossmeshError(said["error"])
            target = Target(f"http://127.0.0.1:{said['port']}", settings.models[0])
            _wait_until_it_answers(target, process, log, _GRACE_S)
            return target

        yield ready


@contextmanager
def _process(command: Sequence[str], variables: dict[str, str], log: Path, *, speaks: bool) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own, which ends with the block: by SIGTERM, at last by SIGKILL.

    What it writes goes to `log`, but for the standard output of one that `speaks`; that one is told first by the end of its input.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if speaks else stream,
            stderr=stream,
            env=variables,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if speaks:
            with suppress(OSError, subprocess.TimeoutExpired):
                process.communicate(timeout=_GRACE_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(OSError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(timeout=_GRACE_S)


def _wait_until_it_answers(target: Target, process: "subprocess.Popen[bytes]", log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CrossmeshError(_ended(f"The server at {target.origin}", log))
        with suppress(OSError), urllib.request.urlopen(f"{target.origin}/v1/models", timeout=_GRACE_S):  # noqa: S310
            if listens_alone(urlsplit(target.origin).port or 0, process.pid):
                return
            raise CrossmeshError(f"Another process listens at {target.origin} as well: what answers there is not known. Start again.")
        time.sleep(_POLL_S)
    raise CrossmeshError(f"The server at {target.origin} did not answer within {timeout_s:g} s (serve.start_timeout_s). Its log is {log}.")


def _ended(what: str, log: Path) -> str:
    return f"{what} did not start:\n{log.read_text(errors='replace')[-_TAIL:].strip()}\nAll of it is in {log}."
