"""Adapters as one engine serves them: checked against its base, and written in the form that the engine computes right.

The driver does it before the engine starts, the replica when an adapter is loaded under load; both ask the same questions. The
engine reads the serving form only, never the folder that was given, so what happens to that folder later cannot reach a request.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crossmesh.adapters.peft_format import adapter_digest, open_adapter, write_serving_adapter
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import canonical_json, digest_text, locked, read_json, write_json
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.fetch import MANIFEST
from crossmesh.models.weights.stores import LocalStore

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM allocates adapters for (`vllm.config.lora.MaxLoRARanks`)."""


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter ready for the engine."""

    name: str
    """The model name that clients use."""
    folder: Path
    """Its serving form."""
    rank: int
    """The largest rank of its modules: what the engine must allocate."""


@dataclass(frozen=True)
class ServedBase:
    """The base model of an engine, and where the serving forms of its adapters are kept."""

    name: str
    """The model name that clients use."""
    folder: Path
    weights_digest: str
    forms: Path
    """Holds one folder for each base and adapter, by their digests."""

    def adapter(self, name: str, source: Path) -> ServedAdapter:
        """Return the PEFT adapter in `source` ready to be served as `name`; its serving form is made once.

        Raises `InputError` for a name that is the base's, and for whatever is no LoRA adapter of this base: another shape, other weights
        where the adapter says which it was trained on, DoRA, pickles, damage.
        """
        if not name.strip() or name == self.name:
            raise InputError(f"An adapter cannot be called {name!r}. Allowed: any name but {self.name!r}, which is the base model's.")
        try:
            return self._adapter(name, source)
        except InputError as error:
            raise InputError(f"Adapter {name!r}: {error}") from error

    def _adapter(self, name: str, source: Path) -> ServedAdapter:
        adapter = open_adapter(source)
        adapter.check_base(self.weights_digest)
        if adapter.copies:
            adapter.check_copies(open_checkpoint(LocalStore(self.folder)))
        vocab = read_architecture(self.folder).vocab
        if beyond := [token for token in adapter.serving.stop_ids if token >= vocab]:
            raise InputError(f"{source} says that its answers end with token {beyond[0]}; the vocabulary of its base has {vocab}.")
        form = self.forms / digest_text(canonical_json([self.weights_digest, adapter_digest(source)]))[:16]
        with locked(form.with_name(f"{form.name}.lock")):
            if not _sound(form):
                shutil.rmtree(form, ignore_errors=True)
                digest = write_serving_adapter(source, form, read_architecture(self.folder))
                write_json(form / MANIFEST, {"source": str(source), "adapter": adapter_digest(source), "digest": digest})
        config = adapter.config
        return ServedAdapter(name, form, max(config.rank_of(module) for module in config.modules))


def _sound(form: Path) -> bool:
    """Whether `form` is the adapter that was written there."""
    try:
        manifest = read_json(form / MANIFEST)
        return bool(manifest["adapter"]) and bool(manifest["digest"] == adapter_digest(form))
    except (OSError, ValueError, KeyError, TypeError, CrossmeshError):
        return False


def check_names(names: Sequence[str]) -> None:
    """Raise `InputError` when two adapters have one name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"serve.adapters: the name {twice[0]!r} is used twice. Give each adapter its own.")


def serving_rank(needed: int) -> int:
    """Return the smallest rank vLLM can allocate for adapters of rank `needed`.

    Allocating more than needed is not free: every shrink and expand computes over the whole allocated rank.
    """
    fitting = [rank for rank in LORA_RANKS if rank >= needed]
    if not fitting:
        raise InputError(f"An adapter of rank {needed} cannot be served: vLLM's largest LoRA rank is {LORA_RANKS[-1]}.")
    return fitting[0]


def check_rank(adapter: ServedAdapter, limit: int) -> None:
    """Raise `InputError` for an adapter whose rank is over `limit`."""
    if adapter.rank > limit:
        raise InputError(
            f"Adapter {adapter.name!r} has rank {adapter.rank}, over serve.max_lora_rank={limit}. "
            f"Start the server with serve.max_lora_rank={adapter.rank} or more."
        )
