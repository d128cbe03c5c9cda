"""What a training run starts from: the seed's initial values, or an adapter that training continues from.

The driver finds such an adapter, holds it against the base and keeps it under `storage.root`, so that workers have it and nothing that
happens to its origin changes the trial. Both backends then ask here what LoRA is on each module and which arrays to start with.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.adapters.initial import FloatArray, initial_lora
from crossmesh.adapters.peft_config import CONFIG_FILE, AdapterConfig
from crossmesh.adapters.peft_format import WEIGHTS_FILE, OpenAdapter, adapter_digest, check_modules, open_adapter
from crossmesh.adapters.sources import find_adapter
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import LORA_TARGETS, LoraSpec
from crossmesh.errors import InputError
from crossmesh.files import new_folder
from crossmesh.models.architecture import Architecture
from crossmesh.models.lora import LoraModule, lora_modules
from crossmesh.models.targets import expand_targets
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.models.weights.stores import LocalStore
from crossmesh.track.tracker import Tracker


@dataclass(frozen=True)
class InitAdapter:
    """The adapter that training continues from."""

    folder: Path
    """A copy under `storage.root`."""
    digest: str


def find_init_adapter(
    lora: LoraSpec, model: ModelFolder, architecture: Architecture, storage: StorageSpec, open_tracker: Callable[[], Tracker]
) -> InitAdapter | None:
    """Find `lora.adapter`, check that it is of this base and keep a copy; None when training starts from the seed.

    Raises `InputError` when there is none, when it is of another base, or when `lora` says otherwise than the adapter.
    """
    if not lora.adapter:
        return None
    adapter = open_adapter(find_adapter(lora.adapter, storage, open_tracker, "lora.adapter").folder)
    if adapter.copies:
        adapter.check_copies(open_checkpoint(LocalStore(model.path)))
    check_start(adapter, lora, architecture, model.weights_digest)
    digest = adapter_digest(adapter.folder)
    kept = storage.path / "cache" / "adapters" / digest[:16]
    if not kept.is_dir():
        with new_folder(kept) as temporary:
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                shutil.copyfile(adapter.folder / name, temporary / name)
    if adapter_digest(kept) != digest:
        raise InputError(f"{kept} is no longer the adapter that lora.adapter={lora.adapter!r} is. Remove that folder and run again.")
    return InitAdapter(kept, digest)


def check_start(adapter: OpenAdapter, lora: LoraSpec, architecture: Architecture, base_digest: str) -> None:
    """Raise `InputError` unless `adapter` fits the base with `base_digest`, and `lora` where it says anything of its own."""
    adapter = check_modules(adapter, architecture)
    adapter.check_base(base_digest)
    adapter.check_values()
    config, plain = adapter.config, LoraSpec()
    targets = tuple(sorted({module.target.name for module in _modules_of(config, architecture)}, key=LORA_TARGETS.index))
    found: dict[str, Any] = {"rank": config.rank, "alpha": config.alpha, "use_rslora": config.rslora, "targets": targets}
    for key, own in found.items():
        given = getattr(lora, key)
        if given != getattr(plain, key) and (set(given) != set(own) if key == "targets" else given != own):
            raise InputError(
                f"lora.{key}={_shown(given)} contradicts lora.adapter={lora.adapter!r}, which has {_shown(own)}. Training continues with "
                f"what the adapter is: leave lora.{key} out."
            )


def adapted_modules(lora: LoraSpec, init_adapter: Path | None, architecture: Architecture) -> tuple[LoraModule, ...]:
    """What LoRA is on each module: as the adapter in `init_adapter` has it, or as `lora` says; empty where all weights are trained."""
    if init_adapter is None:
        return lora_modules(lora, architecture)
    return _modules_of(check_modules(open_adapter(init_adapter), architecture).config, architecture)


def first_values(lora: LoraSpec, init_adapter: Path | None, modules: tuple[LoraModule, ...]) -> dict[str, FloatArray]:
    """The arrays that training starts with, float32 by PEFT name: those of the adapter in `init_adapter`, or the seed's."""
    if init_adapter is None:
        return initial_lora(modules, lora.seed)
    return open_adapter(init_adapter).named_as({module.target.hf for module in modules}).arrays()


def _modules_of(config: AdapterConfig, architecture: Architecture) -> tuple[LoraModule, ...]:
    adapted = set(config.modules)
    return tuple(
        LoraModule(target, config.rank_of(target.hf), config.alpha_of(target.hf), config.rslora)
        for target in expand_targets(architecture, LORA_TARGETS)
        if target.hf in adapted
    )


def _shown(value: object) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
