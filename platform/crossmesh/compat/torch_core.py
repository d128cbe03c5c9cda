"""torch: operations on lists of tensors, operations that its own code chooses, placements of sharded tensors, the compiler."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from crossmesh.compat.parts import member, part, set_member

_FUSED = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
_DYNAMO = "torch._dynamo.exc"


def fused_attention() -> set[Any]:
    """Return the operations that `scaled_dot_product_attention` becomes, for all devices, where it stores no scores."""
    return {part("torch", "torch", "ops", "aten", f"_scaled_dot_product_{name}", "default") for name in _FUSED}


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each of `sources` into its target, in few kernels; from a GPU to pinned memory without waiting."""
    part("torch", "torch", "_foreach_copy_")(targets, sources, non_blocking=True)


def scale_all(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all `tensors` by `factor` in place."""
    part("torch", "torch", "_foreach_mul_")(tensors, factor)


def norms_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each of `tensors`."""
    norms: list[Tensor] = part("torch", "torch", "_foreach_norm")(tensors)
    return norms


def sharded_like(values: Tensor, like: DTensor) -> DTensor:
    """Return `values`, on whatever device, as this rank's part of a tensor that is sharded as `like` is."""
    return DTensor(values, member("torch", like, "_spec"), requires_grad=False)


def allow_recompiles(limit: int) -> None:
    """Let `torch.compile` make so many programs of one function, if not more, before it gives up."""
    config = part("torch", "torch._dynamo", "config")
    set_member("torch", config, "recompile_limit", max(member("torch", config, "recompile_limit"), limit))


def backend_failure() -> Any:
    """Return the class of the error of a compiler behind `torch.compile`, whose own error is its `inner_exception`."""
    return part("torch", _DYNAMO, "BackendCompilerFailed")


def compile_failures() -> tuple[type[Exception], ...]:
    """Return the errors of `torch.compile` itself."""
    return part("torch", _DYNAMO, "TorchDynamoException"), part("torch", _DYNAMO, "FailOnRecompileLimitHit")
