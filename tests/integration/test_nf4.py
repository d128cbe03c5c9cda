"""Bases in 4 bits: the JAX backend multiplies with the very weights that bitsandbytes makes, on any mesh."""

import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import host_devices  # noqa: F401  # eight devices, before anything computes
from crossmesh.config.training import LoraSpec
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.architecture import Weight
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.jax.nf4_jax import LEVELS, dense
from crossmesh.models.targets import projections
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.verify.exchange.check import tiny_models

pytestmark = pytest.mark.integration
MODELS = (
    "llama",
    *(
        pytest.param(name, marks=pytest.mark.full)
        for name in sorted(name.removeprefix("tiny_") for name in tiny_models())
        if name != "llama"
    ),
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> functools.partial[Path]:
    storage = tmp_path_factory.mktemp("nf4")

    def fetch(name: str) -> Path:
        return fetch_model(tiny_models()[f"tiny_{name}"], storage).path

    return functools.partial(fetch)


def weights_of(folder: Path) -> list[Weight]:
    architecture = read_architecture(folder)
    return [weight for index in range(len(architecture.layers)) for weight in projections(architecture, index).values()]


def on_jax(folder: Path, mesh: MeshShape, dtype: str = "float32") -> Iterator[tuple[Weight, np.ndarray]]:
    """Every projection as the JAX backend multiplies by it, in the checkpoint's layout."""
    architecture = read_architecture(folder)
    structure = tunix_jax.build(architecture, ModelConfig(dtype=dtype, quantization="nf4"), LoraSpec(), ())
    _, frozen = tunix_jax.load_weights(structure, folder, tunix_jax.device_mesh(mesh))
    arrays = {path: variable.get_value() for path, variable in frozen.flat_state()}
    for weight in weights_of(folder):
        yield weight, tunix_jax.to_hf(weight, np.asarray(jax.jit(dense)(arrays[weight.tunix_path])))


def by_the_book(weight: np.ndarray) -> np.ndarray:
    """NF4 as bitsandbytes documents it: rows laid end to end, blocks of 64, the level nearest to the value over the block's largest."""
    blocks = weight.astype(np.float32).reshape(-1, 64)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    levels = np.array(LEVELS, np.float32)
    nearest = np.abs((blocks * (1 / largest))[..., None] - levels).argmin(axis=-1)
    return (levels[nearest] * largest).reshape(weight.shape)


@pytest.mark.parametrize("name", MODELS)
def test_weights_in_four_bits_are_those_of_the_book_on_any_mesh(model_folder: functools.partial[Path], name: str) -> None:
    folder = model_folder(name)
    stored = load_file(next(folder.glob("*.safetensors")))
    expected = {weight.hf_name: by_the_book(stored[weight.hf_name]) for weight in weights_of(folder)}
    # Tensor parallelism may cut a block, fsdp always gathers: neither may show.
    for mesh in (MeshShape(1, 1, 1), MeshShape(1, 2, 2)):
        for weight, actual in on_jax(folder, mesh):
            assert np.array_equal(actual, expected[weight.hf_name]), (weight.hf_name, mesh)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_in_four_bits_are_those_of_the_torch_backend(model_folder: functools.partial[Path], name: str, dtype: str) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes comes with the GPU's environment; its kernels run on a CPU as well")
    from bitsandbytes.functional import dequantize_4bit

    from crossmesh.models.torch.hf_torch import DTYPES, quantized_base

    folder = model_folder(name)
    base = quantized_base(folder, read_architecture(folder), DTYPES[dtype], "sdpa", "cpu")
    for weight, actual in on_jax(folder, MeshShape(1, 1, 1), dtype):
        held = base.get_submodule(weight.hf).weight
        assert held.quant_state.blocksize == 64
        assert held.quant_state.absmax.dtype.itemsize == 4
        theirs = dequantize_4bit(held.data, held.quant_state).float().numpy()
        assert np.array_equal(actual.astype(np.float32), theirs), weight.hf_name
