"""A trained adapter as a Hugging Face PEFT folder: written, opened, read, checked and digested.

The one format in which adapters travel, whichever backend trained them. What its settings may say stands in `peft_config.py`.
"""

import json
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from crossmesh.adapters.initial import PEFT_PREFIX, FloatArray, lora_names
from crossmesh.adapters.peft_config import CONFIG_FILE, AdapterConfig, read_config
from crossmesh.config.training import LORA_TARGETS
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import canonical_json, digest_file, digest_text, new_folder, write_json
from crossmesh.installation import job_command
from crossmesh.models.architecture import Architecture
from crossmesh.models.serving_defaults import ServingDefaults, read_defaults
from crossmesh.models.targets import all_weights, expand_targets
from crossmesh.models.weights.checkpoints import FLOATS, Checkpoint, Tensor, read_shard
from crossmesh.models.weights.spelling import module_spellings, spellings
from crossmesh.models.weights.stores import LocalStore, Store

WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLED = ("adapter_model.bin", "adapter_model.pt")
_COPY = re.compile(rf"{re.escape(PEFT_PREFIX)}(?P<module>(.*\.)?(lm_head|embed_tokens))(\.base_layer)?\.weight")
"""What PEFT's `save_embedding_layers` adds."""
_BLOCK = 1 << 22
"""Values that are compared at once."""
_BASE_KEY = "crossmesh_base_weights"
"""Where the file of the arrays says which base they were trained on."""
_SERVING_KEY = "crossmesh_serving"
"""Where it says what the adapter is served with."""


@dataclass(frozen=True)
class OpenAdapter:
    """An adapter whose arrays stay on disk until they are asked for: at rank 64 they are a twentieth of their base."""

    folder: Path
    config: AdapterConfig
    base_digest: str
    """`weights_digest` of the model it was trained on; empty when the adapter does not say."""
    _tensors: Mapping[str, Tensor]
    """By the name that the module has here, which is not always the one in the file."""
    _data_start: int
    copies: Mapping[str, Tensor] = field(default_factory=dict)
    """Whole weights of the base that PEFT writes beside LoRA on its embedding or output projection, by the tensor's name there."""
    serving: ServingDefaults = field(default_factory=ServingDefaults)
    """What it is served with beyond what its base says."""

    def named_as(self, known: Container[str]) -> "OpenAdapter":
        """This adapter with the modules' names that `known` has: the same modules have had several."""
        names = {}
        for module in self.config.modules:
            names[module] = next((one for one in module_spellings(module) if one in known), module)
        if len({*names.values()}) < len(names):
            twice = next(one for one, count in Counter(names.values()).items() if count > 1)
            raise InputError(f"{self.folder} adapts {twice} twice, under two names. Give another adapter.")
        tensors = {
            new: self._tensors[old] for module, name in names.items() for old, new in zip(lora_names(module), lora_names(name), strict=True)
        }
        config = replace(
            self.config,
            modules=tuple(sorted(names.values())),
            ranks={names[module]: rank for module, rank in self.config.ranks.items()},
            alphas={names[module]: alpha for module, alpha in self.config.alphas.items()},
        )
        return replace(self, config=config, _tensors=tensors)

    def arrays(self) -> dict[str, FloatArray]:
        """Read every array by PEFT name."""
        return {name: self.array(name) for name in sorted(name for module in self.config.modules for name in lora_names(module))}

    def check_copies(self, base: Checkpoint) -> None:
        """Raise `InputError` when a weight of the base that the adapter carries is not, bit for bit, the one in `base`."""
        where = {tensor.name: (shard, tensor) for shard in base.shards for tensor in shard.tensors}
        for name, copy in self.copies.items():
            own = next((one for one in spellings(name) if one in where), None)
            if own is None and name.endswith("lm_head.weight"):  # Tied: the embedding is the output projection.
                own = next((one for one in where if one.endswith("embed_tokens.weight")), None)
            if own is not None:
                shard, tensor = where[own]
                if copy.shape == tensor.shape and _equal(
                    (LocalStore(self.folder), WEIGHTS_FILE, self._data_start, copy), (base.store, shard.name, len(shard.header), tensor)
                ):
                    continue
            raise InputError(
                f"{self.folder} carries its own {name}, which is not the one of {base.store.address}: it was trained or resized, and is "
                "no LoRA. Merge the adapter with PEFT itself (merge_and_unload) and use the result as the base, or train it again without "
                "that module (save_embedding_layers=False)."
            )

    def check_base(self, weights_digest: str, otherwise: str = "another adapter") -> None:
        """Raise `InputError` when the adapter says that it was trained on other weights; `otherwise` is what else may be given."""
        if self.base_digest not in ("", weights_digest):
            raise InputError(
                f"{self.folder} was trained on other weights than these: it says {self.base_digest[:16]}, they are {weights_digest[:16]} "
                f"(SHA-256). Give the base it was trained on as model.weights, or {otherwise}."
            )

    def array(self, name: str) -> FloatArray:
        """Read one array, float32, not writable; `CrossmeshError` when a value in it is not finite."""
        tensor = self._tensors[name]
        with closing(LocalStore(self.folder).open(WEIGHTS_FILE)) as reader:
            reader.skip(self._data_start + tensor.start)
            stored = np.frombuffer(reader.read(tensor.size), FLOATS[tensor.dtype])
        array: FloatArray = stored.astype(np.float32, copy=False).reshape(tensor.shape)
        _check_finite(name, array, str(self.folder))
        return array

    def pair(self, module: str) -> tuple[FloatArray, FloatArray]:
        """Read A [rank, in] and B [out, rank] of `module`."""
        name_a, name_b = lora_names(module)
        return self.array(name_a), self.array(name_b)

    def features(self, module: str) -> tuple[int, int]:
        """Inputs and outputs of `module`."""
        name_a, name_b = lora_names(module)
        return self._tensors[name_a].shape[1], self._tensors[name_b].shape[0]

    def check_values(self) -> None:
        """Read every array once, one at a time; `CrossmeshError` when a value is not finite."""
        for name in self._tensors:
            self.array(name)


def open_adapter(folder: Path) -> OpenAdapter:
    """Open a PEFT LoRA adapter: settings and shapes are read and checked, arrays are not.

    Raises `InputError` for anything that is not plain or rank-stabilised LoRA on linear modules in safetensors (pickles, DoRA, biases,
    saved modules, ...), naming it.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise InputError(f"{folder} has no {CONFIG_FILE}, so it is no PEFT adapter. Give the folder that holds it.")
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = [name for name in _PICKLED if (folder / name).is_file()]
        if pickled:
            raise InputError(
                f"{folder / pickled[0]} is a pickle, which can run code when it is read. Allowed: {WEIGHTS_FILE}. Convert it with PEFT."
            )
        raise InputError(f"{folder} has no {WEIGHTS_FILE}. Give the folder of a trained adapter.")
    shard = read_shard(LocalStore(folder), WEIGHTS_FILE, path.stat().st_size)
    read_config(folder, ())  # Says what the adapter is before an array of the wrong type is found.
    if not shard.tensors:
        raise InputError(f"{path} holds no arrays. Give a trained adapter.")
    for tensor in shard.tensors:
        if tensor.dtype not in FLOATS:
            raise InputError(f"{path}: {tensor.name} is {tensor.dtype}. Allowed: {', '.join(FLOATS)}.")
    copies = {copied: tensor for tensor in shard.tensors if (copied := _copied(tensor.name))}
    tensors = {tensor.name: tensor for tensor in shard.tensors if not _copied(tensor.name)}
    modules = sorted({_module(name, folder) for name in tensors})
    config = read_config(folder, modules)
    _check_shapes({name: tensor.shape for name, tensor in tensors.items()}, config, str(folder))
    serving = read_defaults(shard.metadata.get(_SERVING_KEY, ""), str(path))
    return OpenAdapter(folder, config, shard.metadata.get(_BASE_KEY, ""), tensors, len(shard.header), copies, serving)


def write_adapter(
    folder: Path,
    arrays: Mapping[str, FloatArray],
    *,
    rank: int,
    alpha: float,
    dropout: float,
    base_model: str,
    modules: Sequence[str],
    base_digest: str = "",
) -> str:
    """Write a PEFT adapter folder, whole or not at all, and return its digest.

    `arrays` are float32 by PEFT name, A [rank, in] and B [out, rank] of each of `modules`; `base_digest` is the `weights_digest` of the
    model that they belong to. An existing `folder` must hold the same adapter already; otherwise `InputError` is raised and nothing is
    overwritten.
    """
    return store_adapter(folder, arrays, AdapterConfig(rank, alpha, dropout, base_model, tuple(sorted(modules))), base_digest)


def store_adapter(
    folder: Path, arrays: Mapping[str, FloatArray], config: AdapterConfig, base_digest: str, serving: ServingDefaults | None = None
) -> str:
    """`write_adapter` of an adapter whose modules may each have a rank and an alpha of their own, and that is served with `serving`."""
    _check_shapes({name: array.shape for name, array in arrays.items()}, config, str(folder))
    for name, array in arrays.items():
        _check_finite(name, array, str(folder))
    said = {_BASE_KEY: base_digest, _SERVING_KEY: serving.text() if serving else ""}
    metadata = {"format": "pt"} | {key: text for key, text in said.items() if text}
    with new_folder(folder) as temporary:
        contiguous = {name: np.ascontiguousarray(array, np.float32) for name, array in sorted(arrays.items())}
        save_file(contiguous, str(temporary / WEIGHTS_FILE), metadata=metadata)
        _sort_metadata(temporary / WEIGHTS_FILE)
        (temporary / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it private; servers may run as somebody else.
        write_json(temporary / CONFIG_FILE, config.json())
        digest = adapter_digest(temporary)
    if adapter_digest(folder) != digest:
        raise InputError(f"{folder} already holds another adapter. It is left as it is: remove it, or write to another folder.")
    return digest


def _sort_metadata(file: Path) -> None:
    """Give the metadata in a safetensors header one order: the library writes them as its hash map has them, another time another way."""
    with file.open("r+b") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
        if len(text) != size:
            raise CrossmeshError(f"The header of {file} does not keep its size of {size} bytes when its entries are sorted.")
        stream.seek(8)
        stream.write(text)


def read_adapter(folder: Path) -> tuple[dict[str, FloatArray], AdapterConfig]:
    """Read a PEFT LoRA adapter: float32 arrays by PEFT name, and its settings. Raises what `open_adapter` raises."""
    adapter = open_adapter(folder)
    return adapter.arrays(), adapter.config


def adapter_digest(folder: Path) -> str:
    """SHA-256 that identifies an adapter: over the digests of its settings and of its arrays."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}, so it is no PEFT adapter. Give the folder that holds {CONFIG_FILE} and {WEIGHTS_FILE}."
            )
    return digest_text(canonical_json([[name, digest_file(folder / name)] for name in (CONFIG_FILE, WEIGHTS_FILE)]))


def check_modules(adapter: OpenAdapter, architecture: Architecture) -> OpenAdapter:
    """Return `adapter` under this model's names; `InputError` unless every module of it is a projection of the model, with its sizes.

    An engine leaves out what it does not find, and then serves the base under the adapter's name.
    """
    known = {target.hf: (target.in_features, target.out_features) for target in expand_targets(architecture, LORA_TARGETS)}
    adapter = adapter.named_as(known)
    for module in adapter.config.modules:
        if module not in known:
            raise _no_target(adapter.folder, module, architecture)
        found = adapter.features(module)
        if found != known[module]:
            raise InputError(
                f"{adapter.folder} adapts {module} with {found[0]} inputs and {found[1]} outputs; in this model it has {known[module][0]} "
                f"and {known[module][1]}: it is an adapter of another base. Give the base it was trained on as model.weights, or another "
                "adapter."
            )
    return adapter


def tied_error(folder: Path, module: str) -> InputError:
    """What is said of an adapter on an output projection that is the embedding."""
    return InputError(
        f"{folder} adapts {module}, which in this base is the embedding: a merged weight would change the input as well, and no engine "
        "adapts it here. Train another adapter without the output projection, or merge this one with PEFT itself (merge_and_unload with "
        "tie_word_embeddings=false) and use the result as the base."
    )


def _no_target(folder: Path, module: str, architecture: Architecture) -> InputError:
    if is_expert(module):
        return experts_error(folder, module)
    if module.endswith("lm_head") and architecture.tied:
        return tied_error(folder, module)
    if any(weight.hf == module and weight.in_shape for weight in all_weights(architecture)):
        return InputError(
            f"{folder} adapts {module}, which no engine adapts here. Allowed: adapters on {', '.join(LORA_TARGETS)} of the layers. "
            f"Merge it ({job_command('export')} mode=merged) and use the result as the base, or train another adapter."
        )
    return InputError(
        f"{folder} adapts {module}, which this {architecture.family} model does not have: it is an adapter of another base. "
        "Give the base it was trained on as model.weights, or another adapter."
    )


def is_expert(module: str) -> bool:
    """Whether `module` is one of a mixture of experts, or all of them."""
    return "experts" in module.split(".")


def experts_error(folder: Path, module: str) -> InputError:
    """What is said of an adapter on experts."""
    return InputError(
        f"{folder} adapts {module}: experts are not adapted. Their matrices lie fused in one tensor, for which PEFT, Tunix and vLLM have "
        f"no common form of LoRA. Allowed: {', '.join(LORA_TARGETS)}, of which such a layer has attention, and the dense branch where "
        "there is one. Train another adapter, or merge this one with PEFT itself (merge_and_unload) and use the result as the base."
    )


def serving_form(arrays: Mapping[str, FloatArray], architecture: Architecture) -> dict[str, FloatArray]:
    """`arrays` as vLLM needs them: where K and V share one projection, the K arrays also under V's name.

    vLLM 0.32 computes such layers with separate K and V slices and applies an adapter to each by its own name; without the copy the
    change of K does not reach V and the served model is not the trained one.
    """
    served = dict(arrays)
    for index, layer in enumerate(architecture.layers):
        if layer.shared_kv:
            attention = f"{architecture.layer_prefix(index)}self_attn."
            for key, value in zip(lora_names(f"{attention}k_proj"), lora_names(f"{attention}v_proj"), strict=True):
                if key in arrays:
                    served[value] = arrays[key]
    return served


def write_serving_adapter(source: Path, target: Path, architecture: Architecture) -> str:
    """Write the adapter in `source` to `target` in the form that vLLM serves right (`serving_form`); return its digest."""
    adapter = check_modules(open_adapter(source), architecture)
    arrays, config = adapter.arrays(), adapter.config
    served = serving_form(arrays, architecture)
    copies = {module: module.removesuffix("v_proj") + "k_proj" for module in {_module(name, source) for name in served} - {*config.modules}}
    ranks = {copy: config.ranks[key] for copy, key in copies.items() if key in config.ranks}
    alphas = {copy: config.alphas[key] for copy, key in copies.items() if key in config.alphas}
    whole = replace(
        config,
        modules=tuple(sorted({*config.modules, *copies})),
        ranks={**config.ranks, **ranks},
        alphas={**config.alphas, **alphas},
    )
    return store_adapter(target, served, whole, adapter.base_digest, adapter.serving)


def _copied(name: str) -> str:
    """The tensor of the base that an array of an adapter is a copy of; empty for one of LoRA's own."""
    found = _COPY.fullmatch(name)
    return f"{found['module']}.weight" if found else ""


def _equal(one: tuple[Store, str, int, Tensor], other: tuple[Store, str, int, Tensor]) -> bool:
    """Whether two tensors of one shape hold the same values; read a block at a time."""
    with ExitStack() as stack:
        readers = []
        for store, name, start, tensor in (one, other):
            reader = stack.enter_context(closing(store.open(name)))
            reader.skip(start + tensor.start)
            readers.append((reader, np.dtype(FLOATS[tensor.dtype]) if tensor.dtype in FLOATS else None))
        if any(dtype is None for _, dtype in readers):
            return False
        left = prod(one[3].shape)
        while left:
            count = min(left, _BLOCK)
            first, second = (
                np.frombuffer(reader.read(count * dtype.itemsize), dtype).astype(np.float32) for reader, dtype in readers if dtype
            )
            if not np.array_equal(first, second):
                return False
            left -= count
    return True


def _module(name: str, folder: Path) -> str:
    for suffix in (".lora_A.weight", ".lora_B.weight"):
        if name.startswith(PEFT_PREFIX) and name.endswith(suffix):
            return name.removeprefix(PEFT_PREFIX).removesuffix(suffix)
    raise InputError(
        f"{folder / WEIGHTS_FILE}: {name} is not LoRA of a linear module. Allowed: {PEFT_PREFIX}<module>.lora_A.weight and .lora_B.weight. "
        "Merge the adapter with PEFT itself (merge_and_unload) and use the result as the base, or train it on linear modules only."
    )


def _check_shapes(shapes: Mapping[str, tuple[int, ...]], config: AdapterConfig, origin: str) -> None:
    """Check that there is one A and one B of the right rank for each module, and nothing else."""
    expected = {name for module in config.modules for name in lora_names(module)}
    differing = sorted(expected ^ shapes.keys())
    if differing:
        raise InputError(
            f"{origin}: {len(differing)} arrays are missing or belong to no module, e.g. {differing[0]}. Each module needs A and B."
        )
    for module in config.modules:
        name_a, name_b = lora_names(module)
        shape_a, shape_b, rank = shapes[name_a], shapes[name_b], config.rank_of(module)
        if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[0] != rank or shape_b[1] != rank:
            raise InputError(
                f"{origin}: {module} has A {shape_a} and B {shape_b}. With rank {rank}, A must be [{rank}, in] and B [out, {rank}]."
            )


def _check_finite(name: str, array: FloatArray, origin: str) -> None:
    if not np.isfinite(array).all():
        raise CrossmeshError(f"{origin}: {name} holds values that are not finite: the training diverged. Lower optim.learning_rate.")
