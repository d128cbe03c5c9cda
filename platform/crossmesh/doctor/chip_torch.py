"""How fast one chip multiplies and copies, by torch. Run as a module in the environment of training; prints one line of JSON."""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch

from crossmesh.doctor.chip_work import COPIED, ENOUGH_S, ROUNDS, SIZE


def measured() -> dict[str, object]:
    """Time one bf16 matrix product and one copy of float32 on the first GPU, or on the CPU where there is none."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda:0" if on_gpu else "cpu")
    size, numbers = SIZE[on_gpu], COPIED[on_gpu] // 4
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)
    product = _seconds(lambda: torch.mm(left, right, out=out), device)
    source, target = torch.ones(numbers, device=device), torch.empty(numbers, device=device)
    copy = _seconds(lambda: target.copy_(source), device)
    return {
        "framework": f"torch {torch.__version__}",
        "platform": device.type,
        "chip": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "size": size,
        "flops_per_s": 2 * size**3 / product,
        "bytes_per_s": 2 * 4 * numbers / copy,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else _version("nvidia-nccl-cu13"),
        "cuda": torch.version.cuda or "",
    }


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall clock of one call: the fastest of some rounds of calls that are waited for together."""
    count, fastest = 1, float("inf")
    _round(work, 1, device)
    while (took := _round(work, count, device)) < ENOUGH_S:
        count = max(2 * count, int(count * ENOUGH_S / max(took, 1e-6)))
    for _ in range(ROUNDS):
        fastest = min(fastest, _round(work, count, device) / count)
    return fastest


def _round(work: Callable[[], object], count: int, device: torch.device) -> float:
    start = time.perf_counter()
    for _ in range(count):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured()) + "\n")
