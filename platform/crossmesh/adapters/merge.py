"""Merge an adapter into its base: W + scale * B @ A for each adapted matrix, everything else as it was.

Decides which tensor of the checkpoint each module of the adapter means and what its change is; how the bytes go from one place to the
other stands in `models/weights/rewriting.py`. The merged folder appears whole, with a manifest of what it was made from. An interrupted
merge goes on where it stopped. Pure numpy: no framework, nothing of the model's code.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from crossmesh.adapters.initial import FloatArray
from crossmesh.adapters.outputs import resumable_folder
from crossmesh.adapters.peft_format import OpenAdapter, adapter_digest, experts_error, is_expert, tied_error
from crossmesh.errors import InputError
from crossmesh.files import digest_file, write_json
from crossmesh.models.serving_defaults import write_defaults
from crossmesh.models.weights.checkpoints import FLOATS, INDEX_FILE, Checkpoint, Tensor, open_checkpoint
from crossmesh.models.weights.fetch import MANIFEST, weights_digest
from crossmesh.models.weights.rewriting import RowChange, clear_records, rewrite
from crossmesh.models.weights.spelling import spellings
from crossmesh.models.weights.stores import Store, read_small

CONFIG = "config.json"
_RECIPE = 1
"""Raised whenever the same base and adapter give other bytes: what an older crossmesh began is not continued."""
_COPIED = re.compile(
    r"(?!adapter_|training_args|trainer_state)[^.].*\.(json|jinja|txt|model|tiktoken)|(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*", re.IGNORECASE
)
"""Small files that belong to a model: settings, tokenizer, chat template, licence. All are data; code and pickles stay behind."""


@dataclass(frozen=True)
class Merged:
    """A merged model."""

    folder: Path
    modules: int
    """Matrices that were changed."""
    size: int
    """Bytes of its tensors, headers included."""
    base_digest: str
    """`weights_digest` of the base as it was read."""
    adapter_digest: str
    weights_digest: str
    """Of the merged model."""


def merge(adapter: OpenAdapter, base: Store, folder: Path, on_progress: Callable[[int, int], None], *, any_base: bool = False) -> Merged:
    """Write `base` with `adapter` merged into it to `folder`, which must be empty or absent.

    Memory holds one module's A and B and some blocks of rows, whatever the size of the model. Sums are float32 and rounded once.

    Args:
        adapter: what is merged.
        base: the unquantised model, wherever it lies; it is read once and not copied first.
        folder: appears when everything in it is durable. Until then `.<name>.partial` beside it holds finished shards.
        on_progress: hears of bytes done and of all bytes.
        any_base: go on when the adapter says that it was trained on other weights of the same shape.

    Raises:
        InputError: base and adapter do not fit, one of them is damaged or unusable, or `folder` is not empty. Nothing is written.
        CrossmeshError: the disk is full; what is done is kept.
    """
    checkpoint = open_checkpoint(base)
    tensors = match_modules(adapter, checkpoint, read_base_config(base))
    adapter.check_values()
    digest = adapter_digest(adapter.folder)
    changes = {tensor: partial(_change, adapter, module) for module, tensor in tensors.items()}
    # One thread multiplies: the others read, write and digest meanwhile, and blocks of this size gain nothing from more.
    with resumable_folder(folder) as staging, threadpool_limits(1, user_api="blas"):
        shards = rewrite(checkpoint, staging, changes, f"{_RECIPE} {digest}", on_progress)
        copied = _copy_small(base, staging)
        own = write_defaults(staging, adapter.serving)
        base_files = {name: shard.base for name, shard in shards.items()} | copied
        files = {name: shard.merged for name, shard in shards.items()} | copied | {name: digest_file(staging / name) for name in own}
        base_digest, merged_digest = (weights_digest([*shards], hashes) for hashes in (base_files, files))
        if not any_base:
            adapter.check_base(base_digest, "force=true, which the manifest will say")
        made_from = {
            "base": {"source": base.address, "weights_digest": base_digest, "sha256": base_files},
            "adapter": {"source": str(adapter.folder), "digest": digest, "trained_on": adapter.base_digest},
            "scales": {tensor: adapter.config.scale(module) for module, tensor in tensors.items()},
            "any_base": any_base,
        }
        write_json(staging / MANIFEST, {"source": "merge", "sha256": files, "made_from": made_from})
        clear_records(staging)
    return Merged(folder, len(changes), checkpoint.size, base_digest, digest, merged_digest)


def match_modules(adapter: OpenAdapter, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensor of `checkpoint` that each module of `adapter` means, by module.

    A decoder trained alone fits the same decoder inside a multimodal checkpoint and the other way round; nothing else is guessed.
    `InputError` when a module is not there, has another shape, is quantised, or is one with the embedding.
    """
    adapter.check_copies(checkpoint)
    tensors = checkpoint.tensors
    found: dict[str, str] = {}
    for module in adapter.config.modules:
        name = next((name for name in spellings(f"{module}.weight") if name in tensors), None)
        if name is None:
            if module.endswith("lm_head"):
                raise tied_error(adapter.folder, module)
            if is_expert(module):
                raise experts_error(adapter.folder, module)
            raise InputError(
                f"{adapter.folder} adapts {module}, which {checkpoint.store.address} does not have: it is an adapter of another base. "
                "Give the base it was trained on as model.weights, or another adapter."
            )
        if module.endswith("lm_head") and _tie_word_embeddings(config):
            raise tied_error(adapter.folder, module)
        _check_matrix(adapter, module, tensors[name], checkpoint.store.address)
        if name in found.values():
            raise InputError(f"{adapter.folder} adapts {name} of {checkpoint.store.address} twice, under two names. Give another adapter.")
        found[module] = name
    return found


def read_base_config(base: Store) -> dict[str, Any]:
    """Read config.json of the base. `InputError` when there is none, or when it says that the weights are quantised."""
    if CONFIG not in base.names():
        raise InputError(f"{base.address} has no {CONFIG}, so it is no Hugging Face model folder. Give the folder that holds {CONFIG}.")
    try:
        config = {**json.loads(read_small(base, CONFIG))}
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{base.address}/{CONFIG} cannot be read: {error}. Needed: a JSON object.") from error
    for part in (config, config.get("text_config") or {}):
        if isinstance(part, dict) and part.get("quantization_config"):
            raise _quantized(base.address, "quantization_config in config.json")
    return config


def _change(adapter: OpenAdapter, module: str) -> RowChange:
    """Read A and B of `module` and return what adds scale * B @ A to a block of its rows."""
    a, b = adapter.pair(module)
    scale = np.float32(adapter.config.scale(module))

    def add(first: int, rows: FloatArray) -> None:
        rows += (b[first : first + len(rows)] * scale) @ a

    return add


def _check_matrix(adapter: OpenAdapter, module: str, tensor: Tensor, base: str) -> None:
    if tensor.dtype not in FLOATS:
        raise _quantized(base, f"{tensor.name} is {tensor.dtype}")
    into, out = adapter.features(module)
    if tensor.shape != (out, into):
        raise InputError(
            f"{adapter.folder} adapts {module} with {into} inputs and {out} outputs; {tensor.name} of {base} is {list(tensor.shape)}, not "
            f"[{out}, {into}]: it is an adapter of another base. Give the base it was trained on as model.weights, or another adapter."
        )


def _tie_word_embeddings(config: Mapping[str, Any]) -> bool:
    """What the config says; a checkpoint that has an output matrix of its own is not tied unless it is told."""
    text = config.get("text_config")
    own = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False) if isinstance(text, dict) else False)
    return bool(own)


def _quantized(base: str, found: str) -> InputError:
    return InputError(
        f"{base} is quantized ({found}): a change cannot be added to its values. Merge onto the unquantized model that it was made of "
        "(give that as model.weights); an adapter that was trained on 4-bit weights (QLoRA) is merged onto it all the same."
    )


def _copy_small(base: Store, staging: Path) -> dict[str, str]:
    """Copy the small files of a model that are no tensors, and return the SHA-256 of each."""
    digests = {}
    for name in base.names():
        if (name == INDEX_FILE or not name.endswith(".index.json")) and _COPIED.fullmatch(name) and name != MANIFEST:
            (staging / name).write_bytes(read_small(base, name))
            digests[name] = digest_file(staging / name)
    return digests
