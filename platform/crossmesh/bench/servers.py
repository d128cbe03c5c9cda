"""The two servers that ours is measured against: vLLM alone, and the stock application of `ray.serve.llm`. Same engine, same arguments."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from crossmesh.bench.load import Target
from crossmesh.bench.overhead import PLAIN
from crossmesh.cluster import call_worker
from crossmesh.environments import environment
from crossmesh.errors import CrossmeshError
from crossmesh.hardware.devices import Device
from crossmesh.serve.engine import EngineSettings

_ROUTE = "/serve_llm"
_POLL_S = 0.5
_TAIL = 2000
_GRACE_S = 10.0


@contextmanager
def bare_server(settings: EngineSettings, device: Device, log: Path, timeout_s: float) -> Iterator[Target]:
    """The OpenAI server of vLLM itself on a free port, ended with the block. Raises `CrossmeshError` when it does not start."""
    worker = environment(settings.kind, device).with_variables(**settings.variables)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [worker.python or sys.executable, "-m", "vllm.entrypoints.openai.api_server", *bare_arguments(settings, port)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **worker.variables},
            start_new_session=True,
        )
    target = Target(f"http://127.0.0.1:{port}", settings.models[0])
    try:
        _wait(process, port, log, time.monotonic() + timeout_s)
        yield target
    finally:
        _end(process)


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
    return [f"--{name}", *([str(one) for one in value] if isinstance(value, list) else [str(value)])]


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path, deadline: float) -> None:
    """Return when something listens on `port`: vLLM listens once its engine runs."""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CrossmeshError(
                f"The bare vLLM server did not start:\n{log.read_text(errors='replace')[-_TAIL:].strip()}\nAll of it: {log}."
            )
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_POLL_S):
            return
        time.sleep(_POLL_S)
    raise CrossmeshError(f"The bare vLLM server was not ready in time (serve.start_timeout_s). Its log is {log}.")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the server and the engine's processes, which are of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def plain_server(settings: EngineSettings, device: Device, origin: str, timeout_s: float) -> Iterator[Target]:
    """The application of `build_openai_app` in the Ray Serve that already runs at `origin`; removed with the block."""
    from ray import serve

    runtime_env = environment(settings.kind, device).with_variables(**settings.variables).runtime_env
    config: Mapping[str, Any] = {**settings.llm_config, "runtime_env": runtime_env}
    try:
        call_worker(settings.kind, device, deploy_plain, config, PLAIN, _ROUTE)
        _wait_for_application(time.monotonic() + timeout_s)
        yield Target(origin + _ROUTE, settings.models[0])
    finally:
        serve.delete(PLAIN)


def deploy_plain(config: Mapping[str, Any], name: str, route: str) -> None:
    """In a worker: `plain_vllm.deploy`, which must not be imported in the driver."""
    from crossmesh.bench.plain_vllm import deploy

    deploy(config, name, route)


def _wait_for_application(deadline: float) -> None:
    from ray import serve

    while time.monotonic() < deadline:
        application = serve.status().applications.get(PLAIN)
        if application and application.status == "RUNNING":
            return
        if application and application.status in {"DEPLOY_FAILED", "UNHEALTHY"}:
            reasons = [one.message for one in application.deployments.values() if one.message] or [application.message]
            raise CrossmeshError("The plain application of ray.serve.llm did not start.\n" + "\n".join(reasons))
        time.sleep(_POLL_S)
    raise CrossmeshError("The plain application of ray.serve.llm was not ready in time (serve.start_timeout_s).")
