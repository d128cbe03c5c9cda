"""The loss head in torch: sums of what an objective makes of logits, from hidden states, a few rows of logits at a time.

Logits of a large vocabulary are the largest tensor of a step. Here they exist for `rows` rows at once and only for rows that carry loss;
the gradient is made in the same pass, so that nothing of their size is kept. Over a tensor-parallel group each rank has its part of the
vocabulary and the sums are completed over the group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from crossmesh.objectives.objective import LOSS, TokenLosses
from crossmesh.train.ranks_torch import own_vocabulary


@dataclass(frozen=True)
class LossHead:
    """How hidden states become losses."""

    softcap: float
    """Logits are `softcap * tanh(logits / softcap)`; 0: no cap."""
    rows: int
    """Rows of logits at once."""
    token_losses: TokenLosses
    """The objective of a target."""
    group: dist.ProcessGroup | None = None
    """Each rank has an equal part of the vocabulary, in the order of ranks; all give the same hidden states and targets."""


def token_sums(head: LossHead, hidden: Tensor, weight: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Sums over `targets` [N] of each of `head.token_losses`, float32 scalars by name; only `loss` is differentiable.

    `hidden` is [N, hidden], one row for each target; `weight` [vocab, hidden] may be frozen or trained.
    """
    nothing = hidden.new_zeros(1, dtype=torch.float32)
    others = tuple(name for name in head.token_losses(nothing, nothing) if name != LOSS)
    loss, sums = _TokenSums.apply(hidden, weight, targets, head, others, torch.is_grad_enabled())
    return {LOSS: loss, **dict(zip(others, sums, strict=True))}


class _TokenSums(torch.autograd.Function):
    """Losses and gradients together; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, head: LossHead, others: tuple[str, ...], training: bool
    ) -> tuple[Tensor, Tensor]:
        compute = weight.to(hidden.dtype)
        to_hidden = torch.empty_like(hidden) if training and ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight) if training and ctx.needs_input_grad[1] else None
        local, mask = own_vocabulary(targets, len(weight), head.group)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        sums = torch.zeros(len(others), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), head.rows):
            chunk = slice(start, start + head.rows)
            losses, dlogits = _block(head, hidden[chunk] @ compute.T, local[chunk], mask[chunk], to_hidden is not None)
            total += losses[LOSS].sum()
            if others:
                sums += torch.stack([losses[name].sum() for name in others])
            if to_hidden is not None and dlogits is not None:
                dlogits = dlogits.to(compute.dtype)
                torch.mm(dlogits, compute, out=to_hidden[chunk])
                if to_weight is not None:
                    to_weight += dlogits.T @ hidden[chunk]
        if head.group and to_hidden is not None:
            dist.all_reduce(to_hidden, group=head.group)
        ctx.save_for_backward(to_hidden, to_weight)
        ctx.mark_non_differentiable(sums)
        return total, sums

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        scaled = (None if part is None else (part * gradients[0]).to(part.dtype) for part in (to_hidden, to_weight))
        return (*scaled, None, None, None, None)


def _block(head: LossHead, raw: Tensor, local: Tensor, mask: Tensor, training: bool) -> tuple[Mapping[str, Tensor], Tensor | None]:
    """Losses of the rows of a block of logits, and the derivative of `loss` by `raw` [rows, vocab] in float32. `raw` may be overwritten."""
    scores, softcap_grad = raw.float(), None
    if head.softcap:
        scores = scores.div_(head.softcap).tanh_()
        softcap_grad = 1 - scores.square() if training else None
        scores.mul_(head.softcap)
    top = scores.amax(dim=1, keepdim=True)
    if head.group:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=head.group)
    scores.sub_(top)
    at = local[:, None]
    sums = torch.empty((2, len(scores)), dtype=scores.dtype, device=scores.device)
    sums[0] = scores.gather(1, at)[:, 0] * mask
    scores.exp_()
    sums[1] = scores.sum(dim=1)
    if head.group:
        dist.all_reduce(sums, group=head.group)
    log_sum = sums[1].log()
    losses, by_nll, by_normalizer = _losses(head.token_losses, log_sum - sums[0], top[:, 0] + log_sum, training)
    if not training:
        return losses, None
    scores.mul_((by_nll + by_normalizer).div_(sums[1])[:, None]).scatter_add_(1, at, -(by_nll * mask)[:, None])
    return losses, scores if softcap_grad is None else scores.mul_(softcap_grad)


def _losses(token_losses: TokenLosses, nll: Tensor, normalizer: Tensor, training: bool) -> tuple[Mapping[str, Tensor], Tensor, Tensor]:
    """The losses of some rows, and the derivatives of `loss` by `nll` and by `normalizer`."""
    with torch.set_grad_enabled(training):
        inputs = [values.detach().requires_grad_(training) for values in (nll, normalizer)]
        losses = token_losses(*inputs)
        if not training:
            return losses, nll, normalizer
        slopes = torch.autograd.grad(losses[LOSS].sum(), inputs, allow_unused=True, materialize_grads=True)
    return {name: values.detach() for name, values in losses.items()}, *slopes
