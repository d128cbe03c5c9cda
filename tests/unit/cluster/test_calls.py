"""Which node a call into a worker environment goes to, and what is said of one that has not what it needs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray import PlacementGroupID
from ray.util.placement_group import PlacementGroup

from crossmesh.cluster import calls, nodes
from crossmesh.environments import environment
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Cpu, Gpu


def test_a_task_goes_to_a_node_with_the_environment_it_needs() -> None:
    gpus = find_slice("gpu_2xh100").device
    with calls.task_options(environment("train/torch", gpus), gpus) as options:
        assert options["resources"] == {"accelerator_type:H100": 0.001}
        assert options["num_cpus"] == 0
    cpu = find_slice("cpu").device
    for kind, device in (("head", gpus), ("head", find_slice("tpu_v5p_16").device), ("train/torch", cpu)):
        with calls.task_options(environment(kind, device), device) as options:
            assert options["resources"] == {}
            assert "scheduling_strategy" not in options


def test_a_worker_without_its_libraries_is_told_which_lock_has_them() -> None:
    said = "The remote function failed to import on the worker.\nModuleNotFoundError: No module named 'torch'"
    worker = environment("train/torch", Cpu())
    assert calls.lacking(said, worker, Cpu()) == (
        "A worker of train/torch on cpu has no module 'torch': its environment (the one that runs Ray there) is not made from "
        "requirements/cpu.txt. On a cluster's node requirements/install-node.sh makes it. hardware=cpu is for one machine (`make install`)."
    )
    gpu = Gpu("h100", 2, "H100")
    assert calls.lacking(said, replace(environment("train/torch", gpu), python="/there/python"), gpu).startswith(
        "A worker of train/torch on h100 has no module 'torch': its environment (/there/python) is not made from requirements/gpu.txt."
    )
    assert calls.lacking("CUDA out of memory", worker, Cpu()) == ""


def test_a_task_for_tpu_slices_runs_on_a_host_of_them_while_all_their_hosts_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    group = PlacementGroup(PlacementGroupID.from_random())
    removed: list[PlacementGroup] = []

    def placement_group(bundles: list[dict[str, float]], **arguments: Any) -> PlacementGroup:
        asked.append({"bundles": bundles, **arguments})
        return group

    monkeypatch.setattr(nodes, "placement_group", placement_group)
    monkeypatch.setattr(nodes, "remove_placement_group", removed.append)
    tpus = find_slice("tpu_v5p_16").device
    with calls.task_options(environment("train/jax", tpus), tpus, 2) as options:
        assert options["scheduling_strategy"].placement_group is group
        assert options["scheduling_strategy"].placement_group_bundle_index == 0
        assert not removed
    assert removed == [group]
    assert asked == [
        {
            "bundles": [{"accelerator_type:TPU-V5P": 0.001}] * 4,
            "strategy": "STRICT_SPREAD",
            "bundle_label_selector": [{"ray.io/tpu-pod-type": "v5p-16"}] * 4,
        }
    ]


@pytest.mark.parametrize("ended", [True, False])
def test_a_task_that_has_ended_is_not_cancelled(monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    cancelled: list[str] = []
    fake = SimpleNamespace(wait=lambda tasks, timeout: (tasks, []) if ended else ([], tasks), cancel=cancelled.append)
    monkeypatch.setattr(calls, "ray", fake)
    calls.cancel_task("task", 1.0)
    assert cancelled == ([] if ended else ["task"])
