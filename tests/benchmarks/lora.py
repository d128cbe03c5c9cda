"""What LoRA costs a step of the CPU engine: `OMP_NUM_THREADS=2 python tests/benchmarks/lora.py [rank] [rounds]`.

All projections of SmolLM2's 30 layers, float32: a token each of 20 adapters and of one, prompts of 96 tokens of 20 and of one, with B as
vLLM makes it and rank by rank, in turns; beside it the time to read all adapters once. The last line is JSON, in milliseconds (medians).
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "platform"))

from crossmesh.serve.vllm.lora_torch import LoraBatch, by_rank

LAYERS, ADAPTERS = 30, 20
HIDDEN, FFN, KV = 576, 1536, 192
LINEARS = ((HIDDEN, (HIDDEN, KV, KV)), (HIDDEN, (HIDDEN,)), (HIDDEN, (FFN, FFN)), (FFN, (HIDDEN,)))
"""Inputs and outputs of the linear layers that vLLM has in a layer."""
TRAFFIC = {
    "a token each of 20": list(range(ADAPTERS)),
    "20 tokens of one": [3] * ADAPTERS,
    "prompts of 20": [slot for slot in range(ADAPTERS) for _ in range(96)],
    "prompts of one": [3] * ADAPTERS * 96,
}
Stacks = list[tuple[int, tuple[int, ...], list[torch.Tensor], list[torch.Tensor]]]


def stacks(rank: int, layout: Callable[[torch.Tensor], torch.Tensor]) -> Stacks:
    return [
        (
            size,
            sizes,
            [torch.randn(ADAPTERS, 1, rank, size) for _ in sizes],
            [layout(torch.randn(ADAPTERS, 1, out, rank)) for out in sizes],
        )
        for _ in range(LAYERS)
        for size, sizes in LINEARS
    ]


def step_ms(slots: list[int], layers: Stacks) -> float:
    batch = LoraBatch.of(torch.tensor(slots))
    inputs = {size: torch.randn(len(slots), size) for size, _ in LINEARS}
    outputs = {sum(sizes): torch.randn(len(slots), sum(sizes)) for _, sizes in LINEARS}
    start = time.perf_counter()
    for size, sizes, a, b in layers:
        batch.add(outputs[sum(sizes)], inputs[size], a, b, 1.0, sizes)
    return 1000 * (time.perf_counter() - start)


def reading_ms(layers: Stacks) -> float:
    start = time.perf_counter()
    for _, _, a, b in layers:
        for one in (*a, *b):
            one.sum()
    return 1000 * (time.perf_counter() - start)


@torch.inference_mode()
def main(rank: str = "16", rounds: str = "7") -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    layouts = {"by slot": stacks(int(rank), torch.Tensor.contiguous), "by rank": stacks(int(rank), by_rank)}
    held = sum(one.nbytes for _, _, a, b in layouts["by rank"] for one in (*a, *b))
    taken: dict[str, dict[str, list[float]]] = {name: {layout: [] for layout in layouts} for name in TRAFFIC}
    read = []
    for _ in range(int(rounds)):
        read.append(reading_ms(layouts["by rank"]))
        for name, slots in TRAFFIC.items():
            for layout, layers in layouts.items():
                taken[name][layout].append(step_ms(slots, layers))
    medians = {name: {layout: round(median(values), 1) for layout, values in by.items()} for name, by in taken.items()}
    print(json.dumps({"adapters_bytes": held, "read_once": round(median(read), 1), **medians}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
