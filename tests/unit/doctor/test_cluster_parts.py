"""What a cluster's report is made of: which nodes are chosen, the skew of clocks, one folder or two, a chip beside the catalogue."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crossmesh.doctor import cluster_examination, sharing
from crossmesh.doctor.accelerators import SeenAccelerators, SeenGpu, node_finding
from crossmesh.doctor.chip_speed import ChipSpeed, chip_findings, measure_chip
from crossmesh.doctor.clocks import ClockSample, skew, skew_finding
from crossmesh.doctor.finding import FAULT, NOTE, OK, fault, ok
from crossmesh.doctor.node_probe import of_drivers
from crossmesh.doctor.nodes import RayNode, chosen, is_up, listed, recognized
from crossmesh.hardware.catalogue import find_slice, slices
from crossmesh.hardware.devices import Cpu, Gpu, Tpu
from emulated_cluster import EmulatedNode, gpu_node, tpu_nodes

HEAD = {"node:__internal_head__": 1.0}


def nodes(*made: EmulatedNode) -> list[RayNode]:
    """As Ray lists them, in no order."""
    found: list[dict[str, Any]] = []
    for number, one in enumerate(made):
        address = f"10.0.0.{number}"
        gpus = {"GPU": one.num_gpus} if one.num_gpus else {}
        resources = {"CPU": one.num_cpus, "memory": 1e9 + number, f"node:{address}": 1, **gpus, **one.resources}
        labels = {"ray.io/node-id": f"id{number}", **one.labels}
        found.append({"NodeID": f"id{number}", "NodeManagerAddress": address, "Resources": resources, "Labels": labels, "Alive": True})
    return listed([*reversed(found), {**found[0], "NodeID": "dead", "Alive": False}])


def test_one_of_each_kind_and_all_hosts_of_one_slice():
    slices_of_two = (*tpu_nodes("tpu_v5p_16", "b"), *tpu_nodes("tpu_v5p_16", "a"))
    gpus, cpus = (gpu_node("gpu_2xh100"), gpu_node("gpu_2xh100")), (EmulatedNode({}), EmulatedNode({}), EmulatedNode({"big": 1}))
    found = chosen(nodes(EmulatedNode(HEAD), *slices_of_two, *gpus, *cpus), slices().values(), here="id0")
    assert [(one.node.id, one.alike, type(one.device)) for one in found] == [
        ("id3", 2, Tpu),  # Slice a, worker 0 and 1.
        ("id4", 0, Tpu),
        ("id5", 1, Gpu),
        ("id7", 1, Cpu),
        ("id9", 0, Cpu),
    ]
    assert found[0].title == "10.0.0.3, node id3 (TPU v5p-16, host 0 of slice a; 2 more of its kind)"
    assert found[2].hardware == find_slice("gpu_2xh100")
    (head,) = chosen(nodes(EmulatedNode(HEAD)), slices().values(), here="elsewhere")
    assert "(head, 2 CPUs)" in head.title


def test_this_machine_is_looked_at_again_only_for_its_accelerators():
    assert chosen(nodes(EmulatedNode(HEAD)), slices().values(), here="id0") == []
    assert [one.node.id for one in chosen(nodes(gpu_node("gpu_2xh100")), slices().values(), here="id0")] == ["id0"]


def test_twelve_hosts_come_in_order():
    many = [
        EmulatedNode({"TPU": 4, "accelerator_type:TPU-V5P": 1}, {**one.labels, "ray.io/tpu-worker-id": str(number)})
        for number in reversed(range(12))
        for one in tpu_nodes("tpu_v5p_8", "s")
    ]
    found = chosen(nodes(*many), slices().values(), here="")
    assert [one.node.labels["ray.io/tpu-worker-id"] for one in found] == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    ("hardware", "count", "up"),
    [("gpu_2xh100", 1, True), ("gpu_2xh100", 2, False), ("tpu_v5p_16", 1, True), ("tpu_v5p_8", 1, False), ("cpu", 1, True)],
)
def test_whether_hardware_is_up(hardware, count, up):
    there = nodes(gpu_node("gpu_2xh100"), *tpu_nodes("tpu_v5p_16", "a"))
    assert is_up(there, find_slice(hardware).device, count) is up


def test_slices_of_one_host_without_a_name_are_two():
    labels = {"ray.io/tpu-pod-type": "v5p-8"}
    there = nodes(*[EmulatedNode({"TPU": 4, "accelerator_type:TPU-V5P": 1}, labels)] * 2)
    assert is_up(there, find_slice("tpu_v5p_8").device, 2)


def test_half_a_slice_is_not_up():
    assert not is_up(nodes(*tpu_nodes("tpu_v5p_16", "a")[:1]), find_slice("tpu_v5p_16").device, 1)


def test_a_chip_that_the_catalogue_does_not_know():
    (node,) = nodes(EmulatedNode({"accelerator_type:Z9": 1}, {"ray.io/accelerator-type": "Z9"}, num_gpus=3))
    assert recognized(node, slices().values()) == (Gpu("Z9", 3, "Z9"), None)


def test_skew_is_that_of_the_fastest_answer_and_half_its_round_trip_bounds_it():
    answers = [ClockSample(100.0, 131.0, 102.0), ClockSample(110.0, 140.1, 110.2), ClockSample(120.0, 150.9, 121.0)]
    seconds, bound = skew(answers)
    assert (round(seconds, 6), round(bound, 6)) == (30.0, 0.1)
    found = skew_finding(answers)
    assert (found.status, "30000.0 ms ahead of" in found.found, "within 100.0 ms" in found.found) == (FAULT, True, True)
    assert "timedatectl set-ntp true" in found.mend
    assert skew_finding([ClockSample(100.0, 99.9, 100.0)]).found.startswith("100.0 ms behind")
    assert skew_finding([ClockSample(100.0, 104.0, 106.0)]).status == OK  # 1 s, give or take 3.


def test_one_folder_and_two(tmp_path):
    with sharing.offered(tmp_path) as shared:
        found = sharing.sharing_finding(shared, sharing.seen(shared, "node"))
        assert (found.status, "locks hold between them" in found.found) == (OK, True)
        (shared.folder / "node").unlink()
        late = sharing.sharing_finding(shared, sharing.Sight(shared.word, "nfs4 (a:/b)", "node", True))
        assert (late.status, "not here at once" in late.found) == (FAULT, True)
        (shared.folder / "node").write_text(shared.word)
        alone = sharing.sharing_finding(shared, sharing.Sight(shared.word, "nfs4 (a:/b)", "node", False))
        assert (alone.status, alone.mend) == (FAULT, f"sudo mount -o remount,local_lock=none {tmp_path}")
        other = tmp_path / "other" / shared.folder.name
        elsewhere = sharing.seen(sharing.Shared(other, shared.word), "node")
        missing = sharing.sharing_finding(shared, elsewhere)
        assert (missing.status, "no folder" in missing.found) == (FAULT, True)
        assert f"mount -t nfs SERVER:/SHARE {tmp_path}" in missing.mend
    assert list(tmp_path.iterdir()) == []


def values(**changes: Any) -> Mapping[str, Any]:
    return {
        "framework": "torch 2.13.0",
        "platform": "cuda",
        "chip": "NVIDIA H100 80GB HBM3",
        "size": 8192,
        "flops_per_s": 700e12,
        "bytes_per_s": 3.0e12,
        "nccl": "2.29.7",
        "cuda": "13.0",
        **changes,
    }


def test_a_chip_beside_the_catalogue():
    h100 = find_slice("gpu_1xh100")
    found = {one.name: one for one in chip_findings(ChipSpeed(values()), h100.chip, h100.device)}
    assert {one.status for one in found.values()} == {OK}
    assert found["NCCL"].found == "2.29.7, CUDA 13.0"
    assert found["bf16 matmul"].found.endswith(": 71% MFU of h100's peak")  # 700 of 989.
    assert found["memory bandwidth"].found.endswith(": 90% of h100's")  # 3.0 of 3.35.
    slow = {one.name: one for one in chip_findings(ChipSpeed(values(flops_per_s=300e12)), h100.chip, h100.device)}
    assert (slow["bf16 matmul"].status, slow["bf16 matmul"].mend.startswith("nvidia-smi -q")) == (FAULT, True)
    unknown = {one.name: one for one in chip_findings(ChipSpeed(values()), None, h100.device)}
    assert unknown["bf16 matmul"].status == NOTE


def test_libtpu_and_its_flags():
    v5p = find_slice("tpu_v5p_8")
    told = values(platform="tpu", chip="TPU v5", flops_per_s=400e12, nccl="", libtpu="0.0.40", flags="--a=1 --b=2")
    found = {one.name: one for one in chip_findings(ChipSpeed(told), v5p.chip, v5p.device)}
    assert found["XLA flags"].found == "libtpu 0.0.40 takes all 2 of LIBTPU_INIT_ARGS"
    assert found["bf16 matmul"].status == OK


@pytest.mark.parametrize(
    ("said", "name", "status", "part"),
    [
        ("F1 Unknown command line flag 'xla_tpu_x'", "XLA flags", FAULT, "unset XLA_FLAGS LIBTPU_INIT_ARGS"),
        ("The TPU is already in use by process with pid 7", "bf16 matmul", NOTE, ""),
        ("torch.OutOfMemoryError: CUDA out of memory", "bf16 matmul", NOTE, ""),
        ("No module named 'jax'", "bf16 matmul", FAULT, "requirements/tpu-train.txt"),
    ],
)
def test_a_measurement_that_failed(said, name, status, part):
    v5p = find_slice("tpu_v5p_8")
    (found,) = chip_findings(ChipSpeed(said=said), v5p.chip, v5p.device)
    assert (found.name, found.status, part in found.mend) == (name, status, True)


def test_a_measurement_that_cannot_start_or_takes_too_long(tmp_path):
    assert "No such file" in measure_chip("torch", python=str(tmp_path / "python")).said
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    assert measure_chip("torch", python=str(sleeper), within_s=0.2).said == "no result within 0.2 s"


def test_an_unknown_flag_ends_the_measurement_and_is_said():
    v5p = find_slice("tpu_v5p_8")
    measured = measure_chip("jax", {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_flag_that_is_none=1"}, sys.executable, 60)
    (found,) = chip_findings(measured, v5p.chip, v5p.device)
    assert (found.name, "--xla_flag_that_is_none=1" in found.found) == ("XLA flags", True)


def test_what_only_drivers_need_is_a_note_on_other_nodes():
    away = fault("MLflow", "http://head:5000 does not answer", "tracking.uri=")
    assert [one.status for one in of_drivers([away, ok("hub", "answers")], head=False)] == [NOTE, OK]
    assert list(of_drivers([away], head=True)) == [away]


def test_a_node_without_the_chips_that_ray_was_told_of():
    h100 = find_slice("gpu_2xh100").device
    one = SeenAccelerators((SeenGpu("NVIDIA H100 80GB HBM3", 81559 << 20, "580.1"),), "13.0")
    assert node_finding(one, h100, 2, emulated=False).status == FAULT
    assert node_finding(one, h100, 1, emulated=False).status == OK
    assert node_finding(one, Cpu(), 0, emulated=False).status == NOTE
    assert node_finding(SeenAccelerators(), h100, 2, emulated=True).status == NOTE


def test_environments_that_jobs_of_the_hardware_use(monkeypatch):
    def kinds(hardware: str) -> list[str]:
        return [one.kind for one in cluster_examination.environments_of(find_slice(hardware).device)]

    for name in ("TRAIN_JAX", "TRAIN_TORCH", "SERVE_VLLM_TPU", "SERVE_VLLM_GPU"):
        monkeypatch.delenv(f"CROSSMESH_PYTHON_{name}", raising=False)
    monkeypatch.delenv("CROSSMESH_EMULATE", raising=False)
    assert kinds("cpu") == ["head"]
    assert kinds("gpu_2xh100") == ["train/torch"]  # Serving has the same lock and interpreter.
    monkeypatch.setenv("CROSSMESH_PYTHON_TRAIN_JAX", str(Path("/opt/jax/bin/python")))
    monkeypatch.setenv("CROSSMESH_PYTHON_SERVE_VLLM_TPU", "/opt/vllm/bin/python")
    assert kinds("gpu_2xh100") == ["train/torch", "train/jax"]
    assert kinds("tpu_v5p_8") == ["train/jax", "serve/vllm-tpu"]
