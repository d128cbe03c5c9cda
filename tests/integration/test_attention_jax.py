"""The TPU attention kernel, interpreted, beside plain attention: packed rows, windows, grouped heads, odd sizes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crossmesh.models.jax.attention_jax import attend, splash_attend, splash_block

pytestmark = [pytest.mark.integration, pytest.mark.full]


@pytest.mark.parametrize("window", [0, 16])
def test_splash_computes_what_plain_attention_does(window: int) -> None:
    random = np.random.default_rng(0)
    query, key, value = (jnp.asarray(random.normal(size=(2, 150, heads, 32)), jnp.float32) for heads in (4, 2, 2))
    places = np.arange(150)
    segments = jnp.asarray(np.stack([np.where(places < 60, 1, np.where(places < 130, 2, 0)), np.ones(150)]), jnp.int32)
    real = (segments > 0)[..., None, None]

    def result(kernel: Any) -> Any:
        summed = jax.value_and_grad(lambda *arrays: jnp.sum(jnp.sin(kernel(*arrays)) * real), (0, 1, 2))
        return jax.jit(summed)(query, key, value)

    total, gradients = result(lambda *arrays: splash_attend(*arrays, segments, window, interpret=True))
    expected, references = result(lambda *arrays: attend(*arrays, segments, window, "plain"))
    assert float(total) == pytest.approx(float(expected), rel=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient, reference, atol=1e-4)


@pytest.mark.parametrize(
    ("length", "width", "itemsize", "block"),
    [(3072, 256, 2, 1024), (3072, 512, 2, 512), (3072, 128, 4, 512), (3072, 256, 4, 256), (256, 128, 2, 256)],
)
def test_blocks_have_room_in_vector_memory(length: int, width: int, itemsize: int, block: int) -> None:
    """Found by compiling for v5p: the next larger block of the first four is refused, but for the first, which is the largest."""
    assert splash_block(length, width, itemsize) == block
