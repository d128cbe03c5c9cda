"""What a model is built of: layers, sizes, attention kinds, and every weight under its name on both sides.

Pure values; a family (`families/llama/family.py`) makes them of a Hugging Face config, `families/registry.py` finds the family.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

AttentionKind = Literal["global", "sliding"]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of a layer."""

    theta: float
    kind: str
    """`rope_type` of the config: `default`, `proportional`, `llama3`, ..."""
    fraction: float
    """Part of the head's dimensions that is rotated."""
    factor: float = 1.0
    """How many times longer texts are than those that the model was first trained on."""
    settings: tuple[tuple[str, float], ...] = ()
    """What else its kind computes with, by its name in the config."""


@dataclass(frozen=True)
class LayerKind:
    """The shape of one decoder layer."""

    attention: AttentionKind
    window: int
    """Tokens a sliding layer sees, its own included; 0 in a global layer."""
    heads: int
    kv_heads: int
    head_dim: int
    shared_kv: bool
    """The key projection also makes the values: there is no value projection."""
    rope: Rope
    kv_from: int | None = None
    """Earlier layer whose keys and values this one uses; it has no projections for them."""
    ffn: int | None = None
    """Inner features of the feed-forward network where they are not the architecture's."""

    @property
    def q_dim(self) -> int:
        """Output features of the query projection, and input features of the output projection."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Output features of the key projection, and of the value projection where there is one."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class Experts:
    """Mixture of experts: gated feed-forward networks of which each token uses a few."""

    count: int
    per_token: int
    ffn: int
    """Inner features of one."""
    normalized: bool = True
    """Whether the shares of a token's experts sum to 1."""


@dataclass(frozen=True)
class Multipliers:
    """What some families multiply values by on their way through the model."""

    embedding: float = 1.0
    residual: float = 1.0
    """Of what attention and feed-forward network add to the stream."""
    logits: float = 1.0
    """Backends multiply the hidden states by it instead, so that no loss needs to know."""


@dataclass(frozen=True)
class Architecture:
    """A decoder-only text model."""

    family: str
    """`model.family` of the spec."""
    layers: tuple[LayerKind, ...]
    hidden: int
    ffn: int
    heads: int
    vocab: int
    tied: bool
    """The output projection is the embedding."""
    max_positions: int
    norm_epsilon: float
    logit_softcap: float
    """Logits are `cap * tanh(logits / cap)`; 0 where they are not capped."""
    prefix: str
    """What weight and module names of the text decoder start with: `model.`, or `model.language_model.` inside a multimodal model."""
    experts: Experts | None = None
    """Experts beside the feed-forward network of every layer, or, with `ffn` 0, in its place."""
    per_layer_input: int = 0
    """Width of the embedding of each token that every layer gets for itself; 0 without."""
    query_scalar: float = 0.0
    """Queries are divided by its root; 0 where that is the family's own rule."""
    attention_softcap: float = 0.0
    """Attention scores are `cap * tanh(scores / cap)`; 0 where they are not capped."""
    multipliers: Multipliers = Multipliers()

    def layer_prefix(self, layer: int) -> str:
        """Start of the names of layer `layer`, e.g. `model.layers.0.`."""
        return f"{self.prefix}layers.{layer}."

    def ffn_of(self, layer: int) -> int:
        """Inner features of the feed-forward network of layer `layer`."""
        return self.layers[layer].ffn or self.ffn


@dataclass(frozen=True)
class Weight:
    """One tensor on both sides.

    Hugging Face keeps a linear projection as [out, in]; Tunix splits `out` or `in` into heads and orders the axes its own way. The
    Tunix tensor is `hf.reshape(out_shape + in_shape).transpose(axes)`. A tensor that is not a projection has an empty `in_shape`.
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
    """What each axis of `out_shape + in_shape` counts: vocab, hidden, heads, kv_heads, head_dim, ffn, norm, one, ... (`placement.py`)."""
    buffer: bool = False
    """A buffer of the Hugging Face module: loaded, never trained."""
    stored: tuple[int, ...] = ()
    """Shape in transformers where it is neither `out_shape` nor [out, in]: a stack of fused projections."""
    pieces: tuple[str, ...] = ()
    """Names of its parts in the checkpoint, in order, where that does not hold it in one: a matrix for each expert."""

    @property
    def hf_name(self) -> str:
        """Name of the tensor in transformers, and in the checkpoint unless it lies there in pieces."""
        return f"{self.hf}.{self.hf_param}"

    @property
    def stored_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes in the checkpoint by name."""
        shape = self.hf_shape
        return dict.fromkeys(self.pieces, (shape[0] * shape[1] // len(self.pieces), *shape[2:])) if self.pieces else {self.hf_name: shape}

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """Shape in transformers."""
        return self.stored or ((self.out_features, self.in_features) if self.in_shape else self.out_shape)

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
class ConfigKeys:
    """The keys of one family's `config.json` beside those that are free."""

    computed: frozenset[str]
    fixed: Mapping[str, tuple[Any, ...]]
    """By key, the values that are computed; absent counts as the first."""


@dataclass(frozen=True)
class Family:
    """What sets one family of models apart: how its config is read, and how its weights are called and laid out."""

    name: str
    """`model.family` of the spec."""
    model_types: tuple[str, ...]
    """`model_type` of the configs that `read` takes."""
    read: Callable[[Json, str], Architecture]
    """A config, and how errors call it, to the architecture. Raises `InputError` for parts that crossmesh does not know."""
    projections: Callable[[Architecture, int], dict[str, Weight]]
    """Layer to its linear projections by logical name: q, k, v, o, gate, up, down."""
    others: Callable[[Architecture, int], Iterator[Weight]]
    """Layer to its tensors that are no projection."""
    outer: Callable[[Architecture], Iterator[Weight]]
    """The tensors of no layer."""
    keys: ConfigKeys
    """What becomes of every key of its configs."""
    jax: str
    """`module:attribute` of what makes its JAX model of an `Architecture` and a `ModelConfig`; imported in workers only."""
    folder: Path
    """Where its tiny architectures are: `tiny.json`, and `tiny_<variant>.json` for what `tiny.json` does not reach."""
    unused: Callable[[Architecture], frozenset[str]] = lambda _: frozenset()
    """Names of tensors that a checkpoint may hold and that nothing reads."""
    check_jax: Callable[[Architecture], None] = lambda _: None
    """Raises `InputError` for what its JAX model does not compute as transformers does."""
    one_mask: bool = False
    """Its decoder in transformers takes one mask, not one by kind of layer: all layers have the same window."""
    capped: bool = False
    """Its attention scores are capped, which SDPA does not do."""
    centered_norms: bool = False
    """It keeps the scale of a norm as its distance from 1."""


def outer_weights(architecture: Architecture, scale: str) -> Iterator[Weight]:
    """Embedding, last norm (its parameter is called `scale` in Tunix), output projection where it is not the embedding."""
    shape = (architecture.vocab, architecture.hidden)
    yield Weight(f"{architecture.prefix}embed_tokens", "weight", ("embedder",), "input_embedding", shape, dims=("vocab", "hidden"))
    yield Weight(f"{architecture.prefix}norm", "weight", ("final_norm",), scale, (architecture.hidden,), dims=("norm",))
    if not architecture.tied:
        yield Weight("lm_head", "weight", ("lm_head",), "w", shape[:1], shape[1:], (1, 0), ("vocab", "hidden"))


def gated_mlp(architecture: Architecture, index: int) -> dict[str, Weight]:
    """Gate, up and down of layer `index`: `nnx.Linear` kernels [in, out] in Tunix."""
    hidden, ffn = architecture.hidden, architecture.ffn_of(index)
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


Q_DIMS, KV_DIMS, O_DIMS = ("heads", "head_dim", "hidden"), ("kv_heads", "head_dim", "hidden"), ("hidden", "heads", "head_dim")
"""What the axes of attention's projections count, [out, in] split into heads."""
