"""Mesh shapes: -1 absorbs the rest, and both numbers are in the error."""

import pytest

from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape, resolve_mesh


@pytest.mark.parametrize(
    ("sizes", "devices", "expected"),
    [
        ((1, -1, 1), 4, MeshShape(1, 4, 1)),
        ((1, 1, -1), 8, MeshShape(1, 1, 8)),
        ((-1, 2, 2), 8, MeshShape(2, 2, 2)),
        ((1, 2, 4), 8, MeshShape(1, 2, 4)),
    ],
)
def test_resolves(sizes, devices, expected):
    assert resolve_mesh(*sizes, devices) == expected


def test_batch_ways_are_data_times_fsdp():
    assert MeshShape(2, 3, 4).dp_size == 6


@pytest.mark.parametrize(
    ("sizes", "devices", "parts"),
    [((-1, -1, 1), 4, ["mesh.data", "mesh.fsdp"]), ((1, -1, 3), 4, ["3", "4 devices"]), ((1, 2, 1), 4, ["2 positions", "4 devices"])],
)
def test_refuses(sizes, devices, parts):
    with pytest.raises(InputError) as caught:
        resolve_mesh(*sizes, devices)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(("name", "chips"), [("cpu", 1), ("tpu_v5p_8", 4), ("tpu_v6e_8", 8), ("gpu_2xh100", 2)])
def test_v5p_counts_cores_in_its_name(name, chips):
    assert find_slice(name).device.chip_count() == chips
