"""How fast one chip multiplies and copies, by JAX. Run as a module in the environment of training; prints one line of JSON."""

import json
import os
import sys

import jax
import jax.numpy as jnp

from crossmesh.doctor.chip_work import COPIED, SIZE, seconds_of, version_of


def measured() -> dict[str, object]:
    """Time one bf16 matrix product and one pass over float32 on the devices of the first chip: of a v7x that are two."""
    first = jax.local_devices()[0]
    where = getattr(first, "coords", None)
    devices = [one for one in jax.local_devices() if where is not None and getattr(one, "coords", None) == where] or [first]
    on_chip = first.platform != "cpu"
    size, numbers = SIZE[on_chip], COPIED[on_chip] // 4
    factors = [jax.device_put(jnp.full((size, size), 0.01, jnp.bfloat16), one) for one in devices]
    multiply = jax.jit(lambda factor: factor @ factor)
    product = seconds_of(lambda: [multiply(one) for one in factors], jax.block_until_ready)
    rows = [jax.device_put(jnp.ones(numbers, jnp.float32), one) for one in devices]
    add = jax.jit(lambda row: row + 1)
    copy = seconds_of(lambda: [add(one) for one in rows], jax.block_until_ready)
    return {
        "framework": f"jax {jax.__version__}",
        "platform": first.platform,
        "chip": first.device_kind,
        "size": size,
        "flops_per_s": len(devices) * 2 * size**3 / product,
        "bytes_per_s": len(devices) * 2 * 4 * numbers / copy,
        "libtpu": version_of("libtpu"),
        "flags": os.environ.get("LIBTPU_INIT_ARGS", ""),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured()) + "\n")
