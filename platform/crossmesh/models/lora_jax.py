"""LoRA on a Tunix model by Qwix, with exactly PEFT's parameters and arithmetic.

Qwix finds the weight that a module multiplies by and adds the low-rank product to the result. The parameters come from the table of
`models/targets.py`, so that no pattern can adapt more or fewer matrices than the torch backend does.
"""

import functools
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from flax import nnx
from qwix._src.interception import disable_interceptions
from qwix._src.utils import flax_util

from crossmesh.models.lora import LoraModule
from crossmesh.models.placement import lora_axes


def adapt(model: Any, modules: tuple[LoraModule, ...], dropout: float) -> Any:
    """Return the abstract `model` with abstract float32 LoRA parameters on `modules`.

    Qwix can make the parameters itself, but only by running the model; traced, that takes half a minute at 30 layers. It uses those that
    it finds beside a weight.
    """
    rules: dict[tuple[int, float], list[str]] = {}
    for one in modules:
        weight = one.target.weight
        module = functools.reduce(lambda node, name: node[name] if isinstance(name, int) else getattr(node, name), weight.tunix, model)
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
        rule, _ = self._get_current_rule_and_op_id(operation, repeated_call=True)
        name = flax_util.find_param(rhs) if isinstance(rule, _Rule) else None
        if name is None:
            return result
        module = flax_util.get_current_module()
        a = getattr(module, f"{name}_lora_a").get_value().reshape(-1, rule.rank)
        b = getattr(module, f"{name}_lora_b").get_value().reshape(rule.rank, -1)
        if rule.dropout:
            lhs = nnx.Dropout(rule.dropout, deterministic=False)(lhs, rngs=flax_util.make_rng("dropout"))
        change = _low_rank(rule.scale, lhs.reshape(-1, a.shape[0]), a, b)
        return (result + change.reshape(result.shape)).astype(result.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _low_rank(scale: float, x: Any, a: Any, b: Any) -> Any:
    """`scale` (x A) B in float32 for `x` [N, in], `a` [in, rank], `b` [rank, out]."""
    return (x.astype(a.dtype) @ a * scale) @ b


def _low_rank_forward(scale: float, x: Any, a: Any, b: Any) -> tuple[Any, Any]:
    inner = x.astype(a.dtype) @ a * scale
    return inner @ b, (x, inner, a, b)


def _low_rank_backward(scale: float, kept: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """JAX's own rule would contract [N, out] and [N, in] as the first operand, which XLA's CPU backend does by transposing them.

    With the narrow [N, rank] operand first there is nothing to transpose: a third of a step's time at SmolLM2's sizes.
    """
    x, inner, a, b = kept
    outer = gradient @ b.T * scale
    over_rows = (((0,), (0,)), ((), ()))
    of_b = jax.lax.dot_general(inner, gradient, over_rows)
    of_a = jax.lax.dot_general(outer, x.astype(a.dtype), over_rows).T
    return (outer @ a.T).astype(x.dtype), of_a, of_b


# JAX runs these when it likes; Qwix must look away, or it takes the factors for weights to adapt.
_low_rank.defvjp(disable_interceptions(_low_rank_forward), disable_interceptions(_low_rank_backward))
