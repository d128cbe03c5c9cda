"""Where a rank of the torch backend stands in the mesh, which part of a tensor it holds, and the sums over ranks.

Axes are those of `hardware/mesh.py`: sequences are divided over dcn, data and fsdp; fsdp also divides tensors by their first axis, tp by
the axis that its projection allows. Nothing here knows a model.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from crossmesh.errors import InputError
from crossmesh.hardware.mesh import AXES, MeshShape


@dataclass(frozen=True)
class Part:
    """The part of a tensor that a rank holds."""

    slices: tuple[slice, ...]
    copies: int
    """Ranks of the whole mesh that hold this part."""


@dataclass(frozen=True)
class Ranks:
    """This process among the others; one process has one device."""

    shape: MeshShape
    rank: int
    device: str
    """`cpu`, or this process's GPU, e.g. `cuda:0`."""
    mesh: DeviceMesh | None
    """None when there is no other process."""
    files: dist.ProcessGroup | None
    """Group of its own on the CPU for saving in the background, beside whatever the training thread sends."""

    @classmethod
    def join(cls, shape: MeshShape) -> "Ranks":
        """Take this process's place in a mesh of `shape`; Ray Train has made the default process group when there are several.

        Raises `InputError` when the mesh has another number of places than there are processes.
        """
        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
        world = dist.get_world_size() if dist.is_initialized() else 1
        if world != shape.devices:
            raise InputError(
                f"{shape} has {shape.devices} places, but {world} torch processes run, one a device. "
                "Choose mesh.data, mesh.fsdp and mesh.tp for the hardware."
            )
        if world == 1:
            return cls(shape, 0, device, None, None)
        mesh = init_device_mesh(device.partition(":")[0], tuple(getattr(shape, axis) for axis in AXES), mesh_dim_names=AXES)
        return cls(shape, dist.get_rank(), device, mesh, dist.new_group(backend="gloo"))

    def index(self, axis: str) -> int:
        """This rank's place on `axis`."""
        return 0 if self.mesh is None else self.mesh.get_local_rank(axis)

    def along(self, axis: str) -> DeviceMesh | None:
        """The ranks that differ from this one on `axis` only; None when there is no other."""
        return None if self.mesh is None or getattr(self.shape, axis) == 1 else self.mesh[axis]

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Process group of `along`."""
        mesh = self.along(axis)
        return None if mesh is None else mesh.get_group()

    @property
    def batch_way(self) -> int:
        """Which part of a batch's sequences is this rank's."""
        return self.rank // self.shape.tp

    def sequences(self, count: int) -> slice:
        """This rank's of the `count` sequences of a micro-batch over the whole mesh."""
        own = count // self.shape.dp_size
        return slice(self.batch_way * own, (self.batch_way + 1) * own)

    def part(self, shape: tuple[int, ...], tp_axis: int | None) -> Part:
        """The part of a tensor of `shape` that is here: tp divides `tp_axis` evenly, fsdp the first axis of what is left.

        fsdp's parts are as FSDP2 makes them: equal, rounded up, the last ones shorter or empty.
        """
        starts, sizes = [0] * len(shape), list(shape)
        copies = self.shape.dcn * self.shape.data
        if tp_axis is None:
            copies *= self.shape.tp
        else:
            sizes[tp_axis] //= self.shape.tp
            starts[tp_axis] = self.index("tp") * sizes[tp_axis]
        if self.shape.fsdp > 1:
            most = math.ceil(sizes[0] / self.shape.fsdp)
            begin = min(most * self.index("fsdp"), sizes[0])
            starts[0] += begin
            sizes[0] = min(most, sizes[0] - begin)
        return Part(tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True)), copies)

    def sum_over_replicas(self, tensors: list[Tensor]) -> None:
        """Sum `tensors` in place over the data axis and then over slices, where fewer bytes are left to send than before fsdp's sum."""
        groups = [group for axis in ("data", "dcn") if (group := self.group(axis))]
        if not groups:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        for group in groups:
            dist.all_reduce(flat, group=group)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def sum_over_all(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.mesh is not None:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether `flag` is True on any rank."""
        if self.mesh is None:
            return flag
        raised = torch.tensor(float(flag), device=self.device)
        dist.all_reduce(raised, dist.ReduceOp.MAX)
        return bool(raised.item())


def own_vocabulary(tokens: Tensor, size: int, group: dist.ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Where `tokens` are in this rank's part of a vocabulary, of `size` tokens a rank in the order of `group`, and which of them are there.

    A token that another rank has gets an index within the part all the same.
    """
    local = tokens - size * (group.rank() if group else 0)
    mask = (local >= 0) & (local < size)
    return local.clamp(0, size - 1), mask


class UsedByRanks(torch.autograd.Function):
    """A value that all ranks of a group hold, and that each uses for its own part of what follows."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the value."""
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The sum of all ranks' gradients."""
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class SumOverRanks(torch.autograd.Function):
    """Sum over a group of what each of its ranks has a part of; everything after the sum is computed by all of them alike."""

    @staticmethod
    def forward(_ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Return the sum."""
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Each part's gradient is the sum's."""
        return gradients[0], None
