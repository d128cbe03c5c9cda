"""The loss head against log-softmax over all logits: values, gradients, and what it allocates."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from crossmesh.objectives.sft import Sft
from crossmesh.train.loss_torch import LossHead, token_sums

VOCAB, HIDDEN, ROWS = 301, 24, 50


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(ROWS, HIDDEN, generator=random)
    weight = torch.randn(VOCAB, HIDDEN, generator=random)
    return hidden, weight, torch.randint(0, VOCAB, (ROWS,), generator=random)


def summed(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, softcap: float, rows: int) -> torch.Tensor:
    return token_sums(LossHead(softcap, rows, Sft().token_losses), hidden, weight, targets)["loss"]


def plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, softcap: float) -> torch.Tensor:
    logits = (hidden @ weight.T).float()
    return cross_entropy(torch.tanh(logits / softcap) * softcap if softcap else logits, targets, reduction="sum")


def gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss / 7, inputs))


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("trained", [False, True])
def test_loss_and_gradients_are_those_of_all_logits_at_once(softcap: float, rows: int, trained: bool) -> None:
    hidden, weight, targets = drawn()
    inputs = [hidden.requires_grad_(), weight.requires_grad_(trained)][: 1 + trained]
    ours = summed(hidden, weight, targets, softcap=softcap, rows=rows)
    theirs = plain(hidden, weight, targets, softcap)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    for mine, other in zip(gradients(ours, *inputs), gradients(theirs, *inputs), strict=True):
        assert (mine - other).norm() < 1e-5 * other.norm()


def test_a_bfloat16_head_keeps_logits_and_sums_in_float32() -> None:
    hidden, weight, targets = (tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for tensor in drawn())
    hidden.requires_grad_()
    ours, theirs = summed(hidden, weight, targets, softcap=0.0, rows=16), plain(hidden, weight, targets, 0.0)
    assert ours.dtype == torch.float32
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    (mine,), (other,) = gradients(ours, hidden), gradients(theirs, hidden)
    assert mine.dtype == torch.bfloat16
    assert (mine - other).float().norm() < 0.01 * other.float().norm()


def test_without_rows_the_loss_is_zero_and_gradients_still_flow() -> None:
    hidden, weight, targets = drawn()
    hidden.requires_grad_()
    loss = summed(hidden[:0], weight, targets[:0], softcap=0.0, rows=16)
    assert loss.item() == 0
    assert gradients(loss, hidden)[0].abs().max() == 0


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


def test_no_tensor_is_larger_than_a_block_of_logits() -> None:
    hidden, weight, targets = drawn()
    hidden.requires_grad_()
    rows = 25
    with _Largest() as largest:
        summed(hidden, weight, targets, softcap=5.0, rows=rows).backward()
    assert largest.numbers == rows * VOCAB
    with _Largest() as largest:
        plain(hidden, weight, targets, 5.0).backward()
    assert largest.numbers == ROWS * VOCAB
