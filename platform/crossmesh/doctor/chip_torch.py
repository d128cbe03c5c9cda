"""How fast one chip multiplies and copies, by torch. Run as a module in the environment of training; prints one line of JSON."""

import json
import sys

import torch

from crossmesh.doctor.chip_work import COPIED, SIZE, seconds_of, version_of


def measured() -> dict[str, object]:
    """Time one bf16 matrix product and one copy of float32 on the first GPU, or on the CPU where there is none."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda:0" if on_gpu else "cpu")
    size, numbers = SIZE[on_gpu], COPIED[on_gpu] // 4
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(left)

    def wait(_result: object) -> None:
        if on_gpu:
            torch.cuda.synchronize(device)

    product = seconds_of(lambda: torch.mm(left, right, out=out), wait)
    source, target = torch.ones(numbers, device=device), torch.empty(numbers, device=device)
    copy = seconds_of(lambda: target.copy_(source), wait)
    return {
        "framework": f"torch {torch.__version__}",
        "platform": device.type,
        "chip": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "size": size,
        "flops_per_s": 2 * size**3 / product,
        "bytes_per_s": 2 * 4 * numbers / copy,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else version_of("nvidia-nccl-cu13"),
        "cuda": torch.version.cuda or "",
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured()) + "\n")
