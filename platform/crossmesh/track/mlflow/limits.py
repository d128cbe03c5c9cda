"""What MLflow 3.17 takes: names of metrics, lengths, sizes of requests. Pure."""

import posixpath
import re
from collections.abc import Mapping

from crossmesh.files import digest_text
from crossmesh.track.flatten import KEY_LIMIT

TAG_LIMIT = 8_000
"""Longest tag value, in characters."""
PARAMS_PER_BATCH = 100
METRICS_PER_BATCH = 1_000
_NOT_IN_METRICS = re.compile(r"[^/\w.\- :]")


def metric_name(name: str, taken: Mapping[str, str]) -> str:
    """Return `name` as MLflow takes it for a metric: what it refuses becomes `_`, and no two names become one.

    Args:
        name: any text.
        taken: the names that were given out, each with what it stands for.
    """
    key = _NOT_IN_METRICS.sub("_", name)
    if key != posixpath.normpath(key) or key.startswith(("/", "..")) or key == ".":
        parts = [part if part.strip(".") else part.replace(".", "_") or "_" for part in key.split("/")]
        key = "/".join(parts)
        key = f"__{key[2:]}" if key.startswith("..") else key  # MLflow takes it for a folder above.
    if len(key) > KEY_LIMIT or taken.get(key, name) != name:
        key = f"{key[: KEY_LIMIT - 17]}_{digest_text(name)[:16]}"
    return key
