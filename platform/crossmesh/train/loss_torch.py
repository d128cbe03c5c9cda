"""The loss head in torch: negative log-likelihood from hidden states, a few rows of logits at a time.

Logits of a large vocabulary are the largest tensor of a step. Here they exist for `rows` rows at once and only for rows that carry loss;
the gradient is made in the same pass, so that nothing of their size is kept. Over a tensor-parallel group each rank has its part of the
vocabulary and the sums are completed over the group.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def summed_nll(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, softcap: float, rows: int, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Sum of the negative log-likelihoods of `targets` [N], in nats, a float32 scalar.

    `hidden` is [N, hidden], one row for each target; `weight` [vocab, hidden] may be frozen or trained. Logits are
    `softcap * tanh(logits / softcap)` where `softcap` is not 0. With a `group`, `weight` is this rank's equal part of the vocabulary, in
    the order of ranks, and all ranks give the same `hidden` and `targets`.
    """
    nll: Tensor = _SummedNll.apply(hidden, weight, targets, softcap, rows, group, torch.is_grad_enabled())
    return nll


class _SummedNll(torch.autograd.Function):
    """Loss and gradients together; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        softcap: float,
        rows: int,
        group: dist.ProcessGroup | None,
        training: bool,
    ) -> Tensor:
        compute = weight.to(hidden.dtype)
        to_hidden = torch.empty_like(hidden) if training and ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight) if training and ctx.needs_input_grad[1] else None
        local = targets - len(weight) * (group.rank() if group else 0)
        inside = (local >= 0) & (local < len(weight))
        local = local.clamp(0, len(weight) - 1)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for start in range(0, len(hidden), rows):
            chunk = slice(start, start + rows)
            nll, dlogits = _block(hidden[chunk] @ compute.T, local[chunk], inside[chunk], softcap, group, to_hidden is not None)
            total += nll
            if to_hidden is not None and dlogits is not None:
                dlogits = dlogits.to(compute.dtype)
                torch.mm(dlogits, compute, out=to_hidden[chunk])
                if to_weight is not None:
                    to_weight += dlogits.T @ hidden[chunk]
        if group and to_hidden is not None:
            dist.all_reduce(to_hidden, group=group)
        ctx.save_for_backward(to_hidden, to_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        scaled = (None if part is None else (part * gradients[0]).to(part.dtype) for part in (to_hidden, to_weight))
        return (*scaled, None, None, None, None, None)


def _block(
    raw: Tensor, local: Tensor, inside: Tensor, softcap: float, group: dist.ProcessGroup | None, training: bool
) -> tuple[Tensor, Tensor | None]:
    """Summed nll of one block of logits, and its derivative by `raw` [rows, vocab] in float32. `raw` may be overwritten."""
    scores, softcap_grad = raw.float(), None
    if softcap:
        scores = scores.div_(softcap).tanh_()
        softcap_grad = 1 - scores.square() if training else None
        scores.mul_(softcap)
    top = scores.amax(dim=1, keepdim=True)
    if group:
        dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    scores.sub_(top)
    at = local[:, None]
    sums = torch.empty((2, len(scores)), dtype=scores.dtype, device=scores.device)
    sums[0] = scores.gather(1, at)[:, 0] * inside
    scores.exp_()
    sums[1] = scores.sum(dim=1)
    if group:
        dist.all_reduce(sums, group=group)
    nll = (sums[1].log() - sums[0]).sum()
    if not training:
        return nll, None
    scores.div_(sums[1][:, None]).scatter_add_(1, at, -inside[:, None].to(scores.dtype))
    return nll, scores if softcap_grad is None else scores.mul_(softcap_grad)
