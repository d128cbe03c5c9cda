"""The torch loss head beside plain cross-entropy over the logits of every position: times in turns, gradients, memory of the process."""

import resource
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from crossmesh.objectives.objective import LOSS
from crossmesh.objectives.sft import Sft
from crossmesh.train.loss_torch import LossHead, token_sums
from crossmesh.verify.measure import Progress, ratio, take_turns
from crossmesh.verify.process import Request, answer_measurement

_BLOCK = 128
"""Rows of logits at once, as the backend takes them on a CPU."""


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Measure both heads at the sizes of `request` (`loss_head.HeadSizes`)."""
    torch.manual_seed(0)
    rows, cap = request["time_rows"], request["softcap"]
    hidden = torch.randn(rows, request["hidden"], requires_grad=True)
    weight = torch.randn(request["vocab"], request["hidden"]).mul_(4 / request["hidden"] ** 0.5)
    targets = torch.randint(0, request["vocab"], (rows,))
    mask = torch.arange(rows) % 20 >= round(20 * (1 - request["loss_share"]))

    settings = LossHead(cap, _BLOCK, Sft().token_losses)

    def ours() -> Tensor:
        return token_sums(settings, hidden[mask], weight, targets[mask])[LOSS] / mask.sum()

    def plain() -> Tensor:
        scores = torch.tanh(hidden @ weight.T / cap) * cap
        return cross_entropy(scores, torch.where(mask, targets, -100))

    # In this order, because the high-water mark of a process only rises.
    used, gradients, losses = {}, {}, {}
    before = _peak_bytes()
    for name, head in (("ours", ours), ("plain", plain)):
        losses[name], gradients[name] = _gradient(head, hidden)
        used[name] = _peak_bytes() - before
    seconds = take_turns({"ours": lambda: _gradient(ours, hidden), "plain": lambda: _gradient(plain, hidden)}, request["rounds"], progress)
    difference = torch.linalg.norm(gradients["ours"] - gradients["plain"]) / torch.linalg.norm(gradients["plain"])
    return {
        "time_ratio": ratio(seconds["ours"], seconds["plain"]).figures(),
        "seconds": seconds,
        "peak_bytes": used,
        "gradient_difference": float(difference),
        "loss_difference": abs(losses["ours"] - losses["plain"]) / losses["plain"],
    }


def _gradient(head: Callable[[], Tensor], hidden: Tensor) -> tuple[float, Tensor]:
    loss = head()
    (gradient,) = torch.autograd.grad(loss, hidden)
    return float(loss), gradient


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    answer_measurement(main)
