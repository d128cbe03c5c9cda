"""Every weight of a model, and which of its projections LoRA adapts.

Pure values, no framework: the torch backend reads the Hugging Face half, the JAX backend both, and the expanded targets go into the
science record, so that two runs are known to have trained the same set of matrices. It never opens a checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture, Weight
from crossmesh.models.families.registry import family_of


@dataclass(frozen=True)
class Target:
    """One linear projection that LoRA adapts."""

    layer: int
    name: str
    """Logical name: q, k, v, o, gate, up or down."""
    weight: Weight

    @property
    def hf(self) -> str:
        """Hugging Face module path; PEFT's names are built from it."""
        return self.weight.hf

    @property
    def in_features(self) -> int:
        """Width of A: [rank, in_features] in PEFT."""
        return self.weight.in_features

    @property
    def out_features(self) -> int:
        """Height of B: [out_features, rank] in PEFT."""
        return self.weight.out_features

    @property
    def tunix_a_shape(self) -> tuple[int, ...]:
        """Shape of Qwix's `lora_a` before its last axis, the rank."""
        return self.weight.in_shape

    @property
    def tunix_b_shape(self) -> tuple[int, ...]:
        """Shape of Qwix's `lora_b` after its first axis, the rank."""
        return self.weight.out_shape


def expand_targets(architecture: Architecture, targets: tuple[str, ...]) -> tuple[Target, ...]:
    """Expand logical targets (`q`, `k`, ...) to every concrete projection, layer by layer.

    A layer whose K and V come from one projection has no `v` of its own: `k` adapts both. Raises `InputError` when nothing is left.
    """
    found = tuple(
        Target(index, name, weight)
        for index in range(len(architecture.layers))
        for name, weight in projections(architecture, index).items()
        if name in targets
    )
    if not found:
        known = {name: None for index in range(len(architecture.layers)) for name in projections(architecture, index)}
        raise InputError(
            f"lora.targets={list(targets)} names no projection of this {architecture.family} model. Allowed: {', '.join(known)} "
            "(where K and V share one it is k; experts are not adapted)."
        )
    return found


def hf_module_names(targets: tuple[Target, ...]) -> tuple[str, ...]:
    """Hugging Face module paths of `targets`, sorted: what the science record and `target_modules` of an adapter hold."""
    return tuple(sorted(target.hf for target in targets))


def all_weights(architecture: Architecture) -> Iterator[Weight]:
    """Every tensor of the model."""
    yield from outer_weights(architecture)
    for index in range(len(architecture.layers)):
        yield from layer_weights(architecture, index)


def parameter_count(architecture: Architecture) -> int:
    """Parameters of the model."""
    return sum(prod(weight.hf_shape) for weight in all_weights(architecture))


def outer_weights(architecture: Architecture) -> Iterator[Weight]:
    """The tensors of no layer: embedding, last norm, output projection where it is not the embedding."""
    return family_of(architecture).outer(architecture)


def layer_weights(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Every tensor of layer `index`: its projections, then the others."""
    yield from projections(architecture, index).values()
    yield from family_of(architecture).others(architecture, index)


def projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """The linear projections of layer `index` by logical name."""
    return family_of(architecture).projections(architecture, index)
