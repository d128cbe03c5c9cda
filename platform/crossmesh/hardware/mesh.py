"""Mesh shapes as a pure function of axis sizes and device count."""

from dataclasses import dataclass

from crossmesh.errors import InputError

AXES = ("dcn", "data", "fsdp", "tp")
BATCH_AXES = ("dcn", "data", "fsdp")
"""Axes whose ranks see other sequences; tp ranks share theirs."""


@dataclass(frozen=True)
class MeshShape:
    """Resolved sizes of the mesh axes; their product is the number of devices."""

    data: int
    fsdp: int
    tp: int
    dcn: int = 1
    """Slices, joined by the data-center network."""

    @property
    def devices(self) -> int:
        """Devices over all slices."""
        return self.dcn * self.data * self.fsdp * self.tp

    @property
    def dp_size(self) -> int:
        """Ranks that each see other sequences: dcn x data x fsdp."""
        return self.dcn * self.data * self.fsdp


def resolve_mesh(data: int, fsdp: int, tp: int, devices: int, dcn: int = 1) -> MeshShape:
    """Resolve at most one -1 so that data x fsdp x tp equals `devices`, the devices of one slice; `dcn` slices each hold the same.

    Raises `InputError` that prints both numbers otherwise.
    """
    sizes = {"data": data, "fsdp": fsdp, "tp": tp}
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise InputError(f"mesh.{free[0]}=-1 and mesh.{free[1]}=-1: only one axis can absorb the rest. Give a size to all but one.")
    fixed = 1
    for size in sizes.values():
        fixed *= size if size != -1 else 1
    if free:
        if devices % fixed:
            raise InputError(f"mesh {sizes}: the fixed axes multiply to {fixed}, which does not divide the {devices} devices.")
        sizes[free[0]] = devices // fixed
    elif fixed != devices:
        raise InputError(f"mesh {sizes} has {fixed} positions for {devices} devices. Set one axis to -1, or make the product {devices}.")
    return MeshShape(**sizes, dcn=dcn)
