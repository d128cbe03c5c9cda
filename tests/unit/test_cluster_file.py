"""cluster.yaml is what Ray's launcher accepts, and its node types are the catalogue's slices."""

import yaml
from ray.autoscaler._private.util import fillout_defaults, validate_config

from crossmesh.hardware.catalogue import slices
from crossmesh.hardware.devices import Gpu, Tpu


def test_rays_own_schema_accepts_it(checkout):
    validate_config(fillout_defaults(yaml.safe_load((checkout / "cluster.yaml").read_text())))


def test_node_types_are_the_catalogues_slices(checkout):
    types = yaml.safe_load((checkout / "cluster.yaml").read_text())["available_node_types"]
    assert set(types) - {"head"} == set(slices()) - {"cpu"}
    for name, entry in types.items():
        match slices()[name].device if name in slices() else None:
            case Tpu() as tpu:
                assert entry["resources"]["TPU"] == tpu.chip_count()
                assert entry["node_config"]["acceleratorType"] == tpu.accelerator_type
                assert entry["resources"][f"TPU-{tpu.accelerator_type}-head"] == 1
                assert entry["resources"][f"accelerator_type:TPU-{tpu.chip.upper()}"] == 1
            case Gpu() as gpu:
                assert entry["resources"]["GPU"] == gpu.chip_count()
                assert entry["resources"][f"accelerator_type:{gpu.accelerator_type}"] == 1


def test_accelerators_start_from_zero(checkout):
    types = yaml.safe_load((checkout / "cluster.yaml").read_text())["available_node_types"]
    assert all(entry["min_workers"] == 0 for name, entry in types.items() if name != "head")
