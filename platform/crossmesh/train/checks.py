"""What a worker refuses before it reads a weight: rules over settings, architecture and device, without either framework.

A plan asks the same rules (`plan/training/exact.py`); a test walks every plan that fits through these.
"""

from importlib.util import find_spec

from crossmesh.adapters.init_adapter import adapted_modules
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import check_backend
from crossmesh.models.kernels import FLASH_PACKAGE, check_kernel
from crossmesh.models.placement import Placement, place
from crossmesh.models.quantization import check_torch_quantization
from crossmesh.train.backend import TrainingSetup


def check_torch(setup: TrainingSetup, architecture: Architecture, device: str) -> Placement:
    """Raise `InputError` for what torch cannot train on this `device` (`cpu` or `cuda`); returns what several devices hold whole."""
    check_kernel(setup.attention, architecture, setup.model.dtype, device, flash=find_spec(FLASH_PACKAGE) is not None)
    check_torch_quantization(setup.model.quantization, setup.mesh, cpu=device == "cpu")
    if setup.model.quantization != "none" and find_spec("bitsandbytes") is None:
        raise InputError(
            f"model.quantization={setup.model.quantization} needs the package bitsandbytes in the training environment. "
            "Install it there, or set none."
        )
    return _placed(setup, architecture, "torch")


def check_jax(setup: TrainingSetup, architecture: Architecture) -> Placement:
    """Raise `InputError` for what JAX cannot train; returns what several devices hold whole."""
    check_backend(architecture, "jax")
    return _placed(setup, architecture, "jax")


def _placed(setup: TrainingSetup, architecture: Architecture, backend: str) -> Placement:
    return place(architecture, setup.mesh, backend, setup.model, adapted_modules(setup.lora, setup.init_adapter, architecture))
