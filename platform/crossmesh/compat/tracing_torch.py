"""torch: tensors without values, ranks that do not exist, and what an operation does to memory. For tracing a step, never in one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from crossmesh.compat.parts import member, part, set_member

DispatchMode: Any = part("torch", "torch.utils._python_dispatch", "TorchDispatchMode")
"""Base of a context that sees every operation."""
FakeTensor: Any = part("torch", "torch._subclasses.fake_tensor", "FakeTensor")
"""A tensor with a shape and no values."""
tree_leaves: Callable[[Any], list[Any]] = part("torch", "torch.utils._pytree", "tree_leaves")
"""The leaves of nested lists, tuples and dictionaries."""


def fake_tensors() -> Any:
    """Return a context in which tensors have a shape and no values."""
    return part("torch", "torch._subclasses.fake_tensor", "FakeTensorMode")(allow_non_fake_inputs=True)


@contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Make this process rank 0 of `world_size` whose others do not exist: collectives send nothing and return the right shape."""
    store = part("torch", "torch.testing._internal.distributed.fake_pg", "FakeStore")()
    dist.init_process_group("fake", store=store, rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def aten(name: str) -> Any:
    """Return the operation `aten::name` with all its overloads; many that torch's own code chooses begin with an underscore."""
    return part("torch", "torch", "ops", "aten", name)


def in_backward() -> bool:
    """Whether a backward pass runs in this thread."""
    return bool(part("torch", "torch._C", "_current_graph_task_id")() != -1)


def storage_key(storage: Any) -> int:
    """Return what tells a storage from all others that exist, also one of a fake tensor, which has no address."""
    key: int = member("torch", storage, "_cdata")
    return key


@contextmanager
def resizes_seen(on_resize: Callable[[Any], None]) -> Iterator[None]:
    """Call `on_resize` with each storage that has been resized, which is not an operation: FSDP frees and fills gathered weights so."""
    original = member("torch", torch.UntypedStorage, "resize_")

    def resize(storage: Any, size: int) -> Any:
        result = original(storage, size)
        on_resize(storage)
        return result

    set_member("torch", torch.UntypedStorage, "resize_", resize)
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = original
