"""What the attention kernels of the torch backend need: pure rules, asked before a run and again by its worker.

A plan that fits keeps them all; what only the worker's machine can tell, such as an installed package, is an argument.
"""

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture

FLASH_PACKAGE = "flash_attn"
"""What `backend.attention=flash` needs; the lock of GPU workers does not have it."""
_FLASH_HEAD_DIM = 256
"""The widest head of FlashAttention 2."""


def check_kernel(kernel: str, architecture: Architecture, dtype: str, device: str, *, flash: bool) -> None:
    """Raise `InputError` when torch's `kernel` cannot train this model in this precision on this kind of device (`cpu` or `cuda`).

    `flash`: whether the training environment has FlashAttention 2.
    """
    others = f"Allowed here: backend.attention=plain{'' if architecture.attention_softcap else ', sdpa'} or auto."
    if kernel == "sdpa" and architecture.attention_softcap:
        raise InputError(
            f"backend.attention=sdpa: this model caps attention scores at {architecture.attention_softcap:g}, which SDPA leaves out "
            "silently. Allowed: plain, flex or flash."
        )
    if kernel == "flex" and device == "cpu":
        raise InputError(f"backend.attention=flex on a CPU: FlexAttention has no backward pass there. {others}")
    if kernel != "flash":
        return
    if device == "cpu":
        raise InputError(f"backend.attention=flash on a CPU: FlashAttention runs on NVIDIA GPUs only. {others}")
    if not flash:
        raise InputError(
            f"backend.attention=flash, but the package {FLASH_PACKAGE} is not installed in the training environment (requirements/gpu.txt "
            "does not have it). Install it there and here, name that environment's interpreter in CROSSMESH_PYTHON_TRAIN_TORCH, or set "
            "backend.attention=sdpa or flex."
        )
    if dtype != "bfloat16":
        raise InputError(f"backend.attention=flash with model.dtype={dtype}: FlashAttention computes in bfloat16. Allowed: sdpa or flex.")
    widest = max(range(len(architecture.layers)), key=lambda index: architecture.layers[index].head_dim)
    if (head_dim := architecture.layers[widest].head_dim) > _FLASH_HEAD_DIM:
        raise InputError(
            f"backend.attention=flash: heads of layer {widest} are {head_dim} wide, FlashAttention 2 takes up to {_FLASH_HEAD_DIM}. "
            "Allowed: sdpa or flex."
        )
