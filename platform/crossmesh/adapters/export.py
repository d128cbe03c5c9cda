"""An adapter made ready to be given away: as it is, in the form that vLLM serves right, or merged into its base.

Each mode first holds the adapter against the base's headers, so that what is exported is known to fit; then a folder appears, whole, with
a manifest of its digests.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.adapters.merge import match_modules, merge, read_base_config
from crossmesh.adapters.outputs import resumable_folder
from crossmesh.adapters.peft_config import CONFIG_FILE
from crossmesh.adapters.peft_format import WEIGHTS_FILE, OpenAdapter, adapter_digest, write_serving_adapter
from crossmesh.files import digest_file, write_json
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.fetch import MANIFEST
from crossmesh.models.weights.stores import Store

MODES = ("adapter", "merged", "serving")


@dataclass(frozen=True)
class Exported:
    """What was exported, and the digests that identify it."""

    mode: str
    folder: Path
    base: str
    """Address of the base."""
    adapter_digest: str
    """Of the adapter that was given."""
    digests: Mapping[str, str]
    """`adapter` of an exported adapter; `base_weights` and `weights` of a merged model."""
    modules: int
    rank: int
    alpha: float

    def record(self) -> dict[str, Any]:
        """What a job says of it."""
        return {
            "mode": self.mode,
            "folder": str(self.folder),
            "modules": self.modules,
            "trained_adapter": self.adapter_digest,
            **self.digests,
        }


def export(
    mode: str, adapter: OpenAdapter, base: Store, folder: Path, on_progress: Callable[[int, int], None], *, any_base: bool = False
) -> Exported:
    """Write `adapter` to `folder`, which must be empty or absent, as `mode` says.

    Args:
        mode: `adapter` copies it after checking it; `serving` writes the form that vLLM needs; `merged` writes the whole model.
        adapter: what is exported.
        base: the model it was trained on; for `adapter` and `serving` only headers and config.json are read.
        folder: appears when everything in it is durable.
        on_progress: hears of bytes done and of all bytes of a merge.
        any_base: merge also when the adapter says that it was trained on other weights.

    Raises what `merge` raises.
    """
    if mode == "merged":
        merged = merge(adapter, base, folder, on_progress, any_base=any_base)
        digests = {"base_weights": merged.base_digest, "weights": merged.weights_digest}
        return _exported(mode, adapter, base, folder, merged.adapter_digest, digests)
    config = read_base_config(base)
    match_modules(adapter, open_checkpoint(base), config)
    adapter.check_values()
    given = adapter_digest(adapter.folder)
    with resumable_folder(folder) as staging:
        shutil.rmtree(staging, ignore_errors=True)
        if mode == "serving":
            write_serving_adapter(adapter.folder, staging, parse_architecture(config, base.address))
        else:
            staging.mkdir()
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                shutil.copyfile(adapter.folder / name, staging / name)
        digest = adapter_digest(staging)
        _write_manifest(staging, mode, given, base)
    return _exported(mode, adapter, base, folder, given, {"adapter": digest})


def _write_manifest(staging: Path, mode: str, given: str, base: Store) -> None:
    digests = {name: digest_file(staging / name) for name in (CONFIG_FILE, WEIGHTS_FILE)}
    made_from: dict[str, Any] = {"base": {"source": base.address}, "adapter": {"digest": given}}
    write_json(staging / MANIFEST, {"source": mode, "sha256": digests, "made_from": made_from})


def _exported(mode: str, adapter: OpenAdapter, base: Store, folder: Path, given: str, digests: Mapping[str, str]) -> Exported:
    config = adapter.config
    return Exported(mode, folder, base.address, given, digests, len(config.modules), config.rank, config.alpha)
