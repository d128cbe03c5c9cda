"""LoRA on a Tunix model by Qwix, with exactly PEFT's parameters and arithmetic.

Qwix finds the weight that a module multiplies by and adds the low-rank product to the result. The parameters come from the table of
`models/targets.py`, so that no pattern can adapt more or fewer matrices than the torch backend does.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from flax import nnx

from crossmesh.compat.qwix_jax import current_module, current_rule, not_intercepted, parameter_name
from crossmesh.models import lora_masks
from crossmesh.models.architecture import Weight
from crossmesh.models.lora import LoraModule
from crossmesh.models.placement import lora_axes

_TOKENS = "_lora_tokens"
"""What a parameter's name is followed by: the words of the tokens at hand, uint32 [2, B, T]."""


def apply_lora(model: Any, modules: tuple[LoraModule, ...], dropout: float) -> Any:
    """Return the abstract `model` with abstract float32 LoRA parameters on `modules`.

    Qwix can make the parameters itself, but only by running the model; traced, that takes half a minute at 30 layers. It uses those that
    it finds beside a weight.
    """
    rules: dict[tuple[int, float], list[str]] = {}
    for one in modules:
        weight = one.target.weight
        module = _module(model, weight)
        a = jax.ShapeDtypeStruct((*weight.in_shape, one.rank), jnp.float32)
        b = jax.ShapeDtypeStruct((one.rank, *weight.out_shape), jnp.float32)
        a_axes, b_axes = lora_axes(weight)
        setattr(module, f"{weight.tunix_param}_lora_a", nnx.LoRAParam(a, out_sharding=a_axes))
        setattr(module, f"{weight.tunix_param}_lora_b", nnx.LoRAParam(b, out_sharding=b_axes))
        rules.setdefault((one.rank, one.scale), []).append(re.escape("/".join(map(str, weight.tunix))))
    provider = _Provider(
        [
            _Rule(module_path="|".join(paths), rank=rank, alpha=scale * rank, dropout=dropout, scale=scale)
            for (rank, scale), paths in rules.items()
        ]
    )
    return qwix.apply_lora_to_model(model, provider, rngs=nnx.Rngs(0), skip_nnx_init=True)


def put_masks(model: Any, weights: Iterable[Weight], row_keys: Any, positions: Any, step_key: Any) -> None:
    """Give the adapted ones among `weights` the words of their tokens, from which dropout's masks follow.

    `row_keys` and `positions` are [B, T], `step_key` [2]. A model without them drops nothing.
    """
    tokens = lora_masks.token_words(row_keys, positions.astype(jnp.uint32))
    for weight in weights:
        module = _module(model, weight)
        if hasattr(module, f"{weight.tunix_param}_lora_a"):
            (key,) = lora_masks.module_keys([weight.hf])
            words = jnp.stack(lora_masks.module_words(tokens, step_key ^ key))
            setattr(module, f"{weight.tunix_param}{_TOKENS}", nnx.Variable(words))


def _module(model: Any, weight: Weight) -> Any:
    return functools.reduce(lambda node, name: node[name] if isinstance(name, int) else getattr(node, name), weight.tunix, model)


@dataclass(frozen=True, kw_only=True)
class _Rule(qwix.LoraRule):
    """Qwix's rule with the scale itself: alpha / rank is not what it is in rank-stabilised LoRA."""

    scale: float


class _Provider(qwix.LoraProvider):
    """Qwix's provider with its own low-rank product.

    Two things differ from Qwix's: the result keeps the precision of the base (float32 A and B would widen bfloat16 activations), and the
    gradients are ordered as `_low_rank` says.
    """

    def dot_general(self, lhs: Any, rhs: Any, *args: Any, **kwargs: Any) -> Any:
        # Past LoraProvider: only the frozen product.
        return self._adapted("dot_general", lhs, rhs, super(qwix.LoraProvider, self).dot_general(lhs, rhs, *args, **kwargs))

    def einsum(self, einsum_str: str, *operands: Any, **kwargs: Any) -> Any:
        result = super(qwix.LoraProvider, self).einsum(einsum_str, *operands, **kwargs)
        return self._adapted("einsum", *operands, result) if len(operands) == 2 else result

    def _adapted(self, operation: str, lhs: Any, rhs: Any, result: Any) -> Any:
        """Add scale * B A x to `result` when `rhs` is a weight with LoRA; the input's last axes are the weight's input axes."""
        rule = current_rule(self, operation)
        name = parameter_name(rhs) if isinstance(rule, _Rule) else None
        if name is None:
            return result
        module = current_module()
        a = getattr(module, f"{name}_lora_a").get_value().reshape(-1, rule.rank)
        b = getattr(module, f"{name}_lora_b").get_value().reshape(rule.rank, -1)
        tokens = getattr(module, f"{name}{_TOKENS}", None)
        words = None if tokens is None else tokens.get_value().reshape(2, -1)
        change = _low_rank(rule.scale, rule.dropout, lhs.reshape(-1, a.shape[0]), a, b, words)
        return (result + change.reshape(result.shape)).astype(result.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _low_rank(scale: float, dropout: float, x: Any, a: Any, b: Any, words: Any) -> Any:
    """`scale` (x A) B in float32 for `x` [N, in], `a` [in, rank], `b` [rank, out]; x through dropout where there are `words` [2, N]."""
    return (_dropped(dropout, x.astype(a.dtype), words) @ a * scale) @ b


def _dropped(dropout: float, x: Any, words: Any) -> Any:
    """`x` [N, in] with features dropped and the others scaled up; of a gradient of its result, the gradient of `x`."""
    if words is None:
        return x
    first, second = words[:, :, None]
    keeps = lora_masks.kept(first, second, jnp.arange(x.shape[1], dtype=jnp.uint32), lora_masks.threshold(dropout))
    return jnp.where(keeps, x * np.float32(lora_masks.scale(dropout)), 0)


def _low_rank_forward(scale: float, dropout: float, x: Any, a: Any, b: Any, words: Any) -> tuple[Any, Any]:
    inner = _dropped(dropout, x.astype(a.dtype), words) @ a * scale
    return inner @ b, (x, inner, a, b, words)


def _low_rank_backward(scale: float, dropout: float, kept: Any, gradient: Any) -> tuple[Any, Any, Any, Any]:
    """JAX's own rule would contract [N, out] and [N, in] as the first operand, which XLA's CPU backend does by transposing them.

    With the narrow [N, rank] operand first there is nothing to transpose: a third of a step's time at SmolLM2's sizes. The mask is
    computed again rather than kept.
    """
    x, inner, a, b, words = kept
    outer = gradient @ b.T * scale
    over_rows = (((0,), (0,)), ((), ()))
    of_b = jax.lax.dot_general(inner, gradient, over_rows)
    of_a = jax.lax.dot_general(outer, _dropped(dropout, x.astype(a.dtype), words), over_rows).T
    return _dropped(dropout, outer @ a.T, words).astype(x.dtype), of_a, of_b, None


# JAX runs these when it likes; Qwix must look away, or it takes the factors for weights to adapt.
_low_rank.defvjp(not_intercepted(_low_rank_forward), not_intercepted(_low_rank_backward))
