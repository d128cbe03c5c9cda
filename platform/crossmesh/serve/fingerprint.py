"""What a running server is, for `GET /v1/fingerprint`: weights, adapters, engine, libraries, flags, dtypes, parallelism, hardware, image.

Two answers of a server are of one model and one engine exactly when the digests of their fingerprints are equal. Knows no engine: what
only the running engine can tell comes in as `EngineFacts`.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossmesh.files import canonical_json, digest_text, read_json
from crossmesh.models.weights.fetch import MANIFEST
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.record import server_record
from crossmesh.serve.vllm.settings import EngineSettings
from crossmesh.track.provenance import IMAGE_VARIABLE, LIBRARIES, host_facts, library_versions


@dataclass(frozen=True)
class EngineFacts:
    """What the engine decided by itself where its arguments left it open; nothing that it measures, which differs from start to start."""

    dtype: str
    kv_cache_dtype: str
    tensor_parallel: int
    pipeline_parallel: int
    max_num_batched_tokens: int
    chunked_prefill: bool
    prefix_caching: bool
    kv_block_tokens: int
    device: str
    """The engine's name of the chip."""


def fingerprint(settings: EngineSettings, base: ServedBase, adapters: Mapping[str, str], facts: EngineFacts) -> dict[str, Any]:
    """Return the fingerprint as a JSON value; `sha256` is the digest of all the rest.

    Args:
        settings: what the engine was started with.
        base: the base model.
        adapters: folders of the served adapters (serving forms) by model name, as they are now.
        facts: what the engine tells.
    """
    record = server_record(settings)
    described = {
        "model": {"name": base.name, "weights": base.weights_digest},
        "adapters": {name: read_json(Path(folder) / MANIFEST)["adapter"] for name, folder in sorted(adapters.items())},
        "engine": {key: record[key] for key in ("engine", "version", "arguments")},
        "limits": record["limits"],
        **asdict(facts),
        "hardware": {
            "chip": settings.chip,
            "chips": settings.chips,
            **({"emulated": True} if settings.stand_in else {}),
            "host": host_facts(),
        },
        "python": platform.python_version(),
        "libraries": library_versions(LIBRARIES),
        "image": os.environ.get(IMAGE_VARIABLE),
    }
    return {"sha256": digest_text(canonical_json(described)), **described}
