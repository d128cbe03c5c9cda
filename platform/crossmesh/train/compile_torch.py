"""`torch.compile` of the decoder layers: one region, compiled once for all layers of a kind, at any number of tokens.

Embedding, loss head and optimizer stay as they are: they are few operations, or our own. What FSDP does before and after a layer lies
outside the region, what remat computes again within it.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from crossmesh.errors import InputError
from crossmesh.models.lora_masks_torch import LoraDropout

_VARIANTS = 64
"""Programs of one layer's code: kinds of layer, masks, training or evaluation. Beyond torch's own limit of 8 it would go on uncompiled."""


def compile_layers(layers: nn.ModuleList, cache: Path) -> None:
    """Make the forward passes of `layers` compiled ones; they are compiled when they are first called, and kept in the folder `cache`.

    A layer that cannot be compiled raises `InputError` then.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _VARIANTS)
    for module in layers.modules():
        if isinstance(module, LoraDropout):  # Its masks are made block by block, which would be unrolled for every length anew.
            module.forward = torch.compiler.disable(module.forward)  # type: ignore[method-assign]
    for layer in layers:
        layer.forward = functools.partial(_call, torch.compile(layer.forward, dynamic=True))


def _call(compiled: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return compiled(*arguments, **options)
    except BackendCompilerFailed as error:
        reason = str(error.inner_exception).strip().partition("\n")[0]
        raise InputError(
            f"backend.compile=layer: torch could not compile a decoder layer ({type(error.inner_exception).__name__}: {reason}). "
            "Set backend.compile=none, or install what is missing: a C++ compiler and Python's headers."
        ) from error
