"""The one table of names: every weight of a family on the Hugging Face side and on the Tunix side, and which of them LoRA may adapt.

Pure values, no framework: the torch backend reads the Hugging Face half, the JAX backend both, and the expanded targets go into the
science record, so that two runs are known to have trained the same set of matrices. It never opens a checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from crossmesh.errors import InputError
from crossmesh.models.families import Architecture, LayerKind


@dataclass(frozen=True)
class Weight:
    """One tensor on both sides.

    Hugging Face keeps a linear projection as [out, in]; Tunix splits `out` or `in` into heads and orders the axes its own way. The
    Tunix tensor is `hf.reshape(out_shape + in_shape).transpose(axes)`. A tensor that is no projection has an empty `in_shape`.
    """

    hf: str
    """Hugging Face module path, e.g. `model.layers.0.self_attn.q_proj`."""
    hf_param: str
    """Name of the tensor in that module; `weight` nearly always."""
    tunix: tuple[str | int, ...]
    """Path of the Tunix module from the model down, e.g. `("layers", 0, "attn", "q_proj")`."""
    tunix_param: str
    """Name of the parameter in that module: `w`, `kernel`, `scale`, ..."""
    out_shape: tuple[int, ...]
    in_shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    """Permutation of `out_shape + in_shape`; empty keeps the order."""
    dims: tuple[str, ...] = ()
    """What each axis of `out_shape + in_shape` counts: vocab, hidden, heads, kv_heads, head_dim, ffn, norm or one (see `placement.py`)."""

    @property
    def hf_name(self) -> str:
        """Name of the tensor in the checkpoint."""
        return f"{self.hf}.{self.hf_param}"

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """Shape in the checkpoint."""
        return (self.out_features, self.in_features) if self.in_shape else self.out_shape

    @property
    def tunix_shape(self) -> tuple[int, ...]:
        """Shape in the Tunix model."""
        shape = self.out_shape + self.in_shape
        return tuple(shape[axis] for axis in self.axes) if self.axes else shape

    @property
    def tunix_path(self) -> tuple[str | int, ...]:
        """Path of the parameter in the Tunix model."""
        return (*self.tunix, self.tunix_param)

    @property
    def tunix_dims(self) -> tuple[str, ...]:
        """`dims` in the order of the Tunix tensor."""
        return tuple(self.dims[axis] for axis in self.axes) if self.axes else self.dims

    @property
    def in_features(self) -> int:
        """Width of the projection's input."""
        return prod(self.in_shape)

    @property
    def out_features(self) -> int:
        """Width of the projection's output."""
        return prod(self.out_shape)


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
        raise InputError(
            f"lora.targets={list(targets)} names no projection of this {architecture.family} model: K and V share one in all layers. Add k."
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


def outer_weights(architecture: Architecture) -> Iterator[Weight]:
    """The tensors of no layer: embedding, last norm, output projection where it is not the embedding."""
    shape = (architecture.vocab, architecture.hidden)
    yield Weight(f"{architecture.prefix}embed_tokens", "weight", ("embedder",), "input_embedding", shape, dims=("vocab", "hidden"))
    scale = _NORM_PARAM[architecture.family]
    yield Weight(f"{architecture.prefix}norm", "weight", ("final_norm",), scale, (architecture.hidden,), dims=("norm",))
    if not architecture.tied:
        yield Weight("lm_head", "weight", ("lm_head",), "w", shape[:1], shape[1:], (1, 0), ("vocab", "hidden"))


def layer_weights(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Every tensor of layer `index`: its projections, then the others."""
    yield from projections(architecture, index).values()
    yield from _PLAIN[architecture.family](architecture, index)


def projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    """The linear projections of layer `index` by logical name."""
    layer = architecture.layers[index]
    attention = _ATTENTION[architecture.family](architecture, layer, index)
    return {**attention, **_mlp(architecture, index)}


def _mlp(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Gate, up and down: `nnx.Linear` kernels [in, out] in both families."""
    hidden, ffn = architecture.hidden, architecture.ffn
    sizes = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
    return {
        name: Weight(
            f"{architecture.layer_prefix(index)}mlp.{name}_proj",
            "weight",
            ("layers", index, "mlp", f"{name}_proj"),
            "kernel",
            (out,),
            (into,),
            (1, 0),
            ("hidden", "ffn") if name == "down" else ("ffn", "hidden"),
        )
        for name, (out, into) in sizes.items()
    }


_Q_DIMS, _KV_DIMS, _O_DIMS = ("heads", "head_dim", "hidden"), ("kv_heads", "head_dim", "hidden"), ("hidden", "heads", "head_dim")


def _llama_attention(architecture: Architecture, layer: LayerKind, index: int) -> dict[str, Weight]:
    """Tunix llama3: q, k, v as [D, heads, H], o as [heads, H, D]."""
    hidden, path = (architecture.hidden,), ("layers", index, "attn")
    hf = f"{architecture.layer_prefix(index)}self_attn"
    q_shape, kv_shape = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim)
    return {
        "q": Weight(f"{hf}.q_proj", "weight", (*path, "q_proj"), "w", q_shape, hidden, (2, 0, 1), _Q_DIMS),
        "k": Weight(f"{hf}.k_proj", "weight", (*path, "k_proj"), "w", kv_shape, hidden, (2, 0, 1), _KV_DIMS),
        "v": Weight(f"{hf}.v_proj", "weight", (*path, "v_proj"), "w", kv_shape, hidden, (2, 0, 1), _KV_DIMS),
        "o": Weight(f"{hf}.o_proj", "weight", (*path, "o_proj"), "w", hidden, q_shape, (1, 2, 0), _O_DIMS),
    }


def _gemma4_attention(architecture: Architecture, layer: LayerKind, index: int) -> dict[str, Weight]:
    """Tunix gemma4: q, k, v as [heads, D, H], o as [heads, H, D].

    Tunix fuses K and V of a layer that has both into one `kv_einsum`; we build it as two modules below that name (`models/tunix_jax.py`
    says why). A layer where they share a projection has `k_einsum` only.
    """
    hidden, path = (architecture.hidden,), ("layers", index, "attn")
    hf = f"{architecture.layer_prefix(index)}self_attn"
    q_shape, kv_shape = (layer.heads, layer.head_dim), (layer.kv_heads, layer.head_dim)
    key = ("k_einsum",) if layer.shared_kv else ("kv_einsum", "k")
    projections = {
        "q": Weight(f"{hf}.q_proj", "weight", (*path, "q_einsum"), "w", q_shape, hidden, (0, 2, 1), _Q_DIMS),
        "k": Weight(f"{hf}.k_proj", "weight", (*path, *key), "w", kv_shape, hidden, (0, 2, 1), _KV_DIMS),
        "v": Weight(f"{hf}.v_proj", "weight", (*path, "kv_einsum", "v"), "w", kv_shape, hidden, (0, 2, 1), _KV_DIMS),
        "o": Weight(f"{hf}.o_proj", "weight", (*path, "attn_vec_einsum"), "w", hidden, q_shape, (1, 2, 0), _O_DIMS),
    }
    if layer.shared_kv:
        del projections["v"]
    return projections


def _llama_plain(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms of a Llama layer."""
    for norm in ("input_layernorm", "post_attention_layernorm"):
        yield Weight(
            f"{architecture.layer_prefix(index)}{norm}", "weight", ("layers", index, norm), "w", (architecture.hidden,), dims=("norm",)
        )


def _gemma4_plain(architecture: Architecture, index: int) -> Iterator[Weight]:
    """Norms and the output scale of a Gemma 4 layer."""
    hf, path = architecture.layer_prefix(index).rstrip("."), ("layers", index)
    norms = {
        "input_layernorm": "pre_attention_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "pre_ffw_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
    for name, ours in norms.items():
        yield Weight(f"{hf}.{name}", "weight", (*path, ours), "scale", (architecture.hidden,), dims=("norm",))
    head_dim = architecture.layers[index].head_dim
    for name, ours in {"q_norm": "_query_norm", "k_norm": "_key_norm"}.items():
        yield Weight(f"{hf}.self_attn.{name}", "weight", (*path, "attn", ours), "scale", (head_dim,), dims=("norm",))
    yield Weight(hf, "layer_scalar", path, "skip_scale", (1,), dims=("one",))


_ATTENTION: dict[str, Callable[[Architecture, LayerKind, int], dict[str, Weight]]] = {
    "llama": _llama_attention,
    "gemma4": _gemma4_attention,
}
_PLAIN: dict[str, Callable[[Architecture, int], Iterator[Weight]]] = {"llama": _llama_plain, "gemma4": _gemma4_plain}
_NORM_PARAM = {"llama": "w", "gemma4": "scale"}
