"""Every token gets its own adapter's change, however the adapters are spread over the batch and the slots."""

from collections.abc import Callable

import pytest
import torch

from crossmesh.serve.vllm.lora_torch import LoraBatch, by_rank

SLOTS, RANK, IN, SIZES, SCALE = 20, 4, 6, (5, 3), 0.5
PREFILL = [3] * 9
CASES = {
    "one adapter": [7] * 6,
    "no adapter": [-1] * 4,
    "one adapter among tokens without": [-1, 19, 19, -1],
    "one token each, out of order": [5, 0, 19, 7, 12, 3, 4, 1, 2, 6],
    "a few each": [2, 1, 2, 4, 1, 2],
    "two at both ends of the slots": [19, 0, 19],
    "a prompt beside tokens of others and of none": [*PREFILL, 4, -1, 0, 4, 5, 1],
    "two prompts": [*PREFILL, *[4] * 7],
    "a prompt between the slots of others": [2, 4, *PREFILL],
}


@pytest.mark.parametrize("layout", [by_rank, torch.clone])
@pytest.mark.parametrize("slots", CASES.values(), ids=CASES.keys())
def test_each_token_gets_the_change_of_its_own_adapter(slots: list[int], layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(len(slots), IN, generator=random)
    a = [torch.randn(SLOTS, 1, RANK, IN, generator=random) for _ in SIZES]
    b = [torch.randn(SLOTS, 1, size, RANK, generator=random) for size in SIZES]
    y = torch.randn(len(slots), sum(SIZES), generator=random)
    expected = y.clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            expected[row] += SCALE * torch.cat([b[part][slot, 0] @ a[part][slot, 0] @ x[row] for part in range(len(SIZES))])
    LoraBatch.of(torch.tensor(slots)).add(y, x, a, [layout(stack) for stack in b], SCALE, SIZES)
    torch.testing.assert_close(y, expected)


def test_what_an_empty_slot_holds_reaches_nobody() -> None:
    x, y = torch.ones(2, IN), torch.zeros(2, 5)
    a, b = torch.ones(3, 1, RANK, IN), torch.ones(3, 1, 5, RANK)
    a[1] = torch.nan
    LoraBatch.of(torch.tensor([2, 0])).add(y, x, [a], [b], 1.0, [5])
    torch.testing.assert_close(y, torch.full((2, 5), float(IN * RANK)))
