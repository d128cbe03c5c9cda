"""How fast one chip multiplies and copies, by JAX. Run as a module in the environment of training; prints one line of JSON."""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp

from crossmesh.doctor.chip_work import COPIED, ENOUGH_S, ROUNDS, SIZE


def measured() -> dict[str, object]:
    """Time one bf16 matrix product and one pass over float32 on the devices of the first chip: of a v7x that are two."""
    first = jax.local_devices()[0]
    where = getattr(first, "coords", None)
    devices = [one for one in jax.local_devices() if where is not None and getattr(one, "coords", None) == where] or [first]
    on_chip = first.platform != "cpu"
    size, numbers = SIZE[on_chip], COPIED[on_chip] // 4
    factors = [jax.device_put(jnp.full((size, size), 0.01, jnp.bfloat16), one) for one in devices]
    product = _seconds(jax.jit(lambda factor: factor @ factor), factors)
    rows = [jax.device_put(jnp.ones(numbers, jnp.float32), one) for one in devices]
    copy = _seconds(jax.jit(lambda row: row + 1), rows)
    return {
        "framework": f"jax {jax.__version__}",
        "platform": first.platform,
        "chip": first.device_kind,
        "size": size,
        "flops_per_s": len(devices) * 2 * size**3 / product,
        "bytes_per_s": len(devices) * 2 * 4 * numbers / copy,
        "libtpu": _version("libtpu"),
        "flags": os.environ.get("LIBTPU_INIT_ARGS", ""),
    }


def _seconds(work: Callable[[Any], Any], operands: list[Any]) -> float:
    """Wall clock of one call on all devices: the fastest of some rounds of calls that are waited for together."""
    count, fastest = 1, float("inf")
    _round(work, operands, 1)
    while (took := _round(work, operands, count)) < ENOUGH_S:
        count = max(2 * count, int(count * ENOUGH_S / max(took, 1e-6)))
    for _ in range(ROUNDS):
        fastest = min(fastest, _round(work, operands, count) / count)
    return fastest


def _round(work: Callable[[Any], Any], operands: list[Any], count: int) -> float:
    start = time.perf_counter()
    done = [None] * len(operands)
    for _ in range(count):
        done = [work(one) for one in operands]
    jax.block_until_ready(done)
    return time.perf_counter() - start


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured()) + "\n")
