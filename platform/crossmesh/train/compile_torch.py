"""`torch.compile` of the decoder layers: one region, compiled once for all layers of a kind, at any number of tokens.

Embedding, loss head and optimizer stay as they are: they are few operations, or our own. What FSDP does before and after a layer, and
remat around it, lies outside the region.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from crossmesh.compat.torch_core import allow_recompiles, backend_failure, compile_failures
from crossmesh.errors import InputError

_VARIANTS = 64
"""Programs of one layer's code: kinds of layer, masks, training or evaluation. Beyond the limit, by default torch's 8, a region fails."""


def compile_layers(layers: nn.ModuleList, cache: Path) -> None:
    """Make the forward passes of `layers` compiled ones; they are compiled when they are first called, and kept in the folder `cache`.

    A layer that cannot be compiled as a whole raises `InputError` then: it would run as before, only slower.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    allow_recompiles(_VARIANTS)
    for layer in layers:
        layer.forward = functools.partial(_call, torch.compile(layer.forward, dynamic=True, fullgraph=True))


def _call(compiled: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return compiled(*arguments, **options)
    except backend_failure() as error:
        raise _refused(error.inner_exception, " or install what is missing: a C++ compiler and Python's headers") from error
    except compile_failures() as error:
        raise _refused(error) from error


def _refused(cause: Exception, instead: str = "") -> InputError:
    reason = str(cause).strip().partition("\n")[0]
    return InputError(
        f"backend.compile=layer: torch could not compile a decoder layer ({type(cause).__name__}: {reason}). "
        f"Set backend.compile=none{instead}."
    )
