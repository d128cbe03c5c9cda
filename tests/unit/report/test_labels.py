from dataclasses import fields, replace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import system_record
from crossmesh.hardware.mesh import MeshShape
from crossmesh.report.labels import natural, variant_labels
from crossmesh.report.variants import RunRecord, Variant


def run(number, backend="torch", science=None, **system):
    record = RunRecord(f"run{number}", science or {"lora": 8}, {"backend": backend, **system})
    return Variant(record.name, backend, record, run_id=f"{number:08d}" * 4)


def test_two_backends_are_called_by_their_names():
    assert variant_labels([run(1), run(2, "jax")]) == ("torch", "jax")


def test_every_setting_that_differs_is_in_the_name_and_no_other():
    runs = [
        run(n, hardware="cpu", mesh={"fsdp": fsdp, "tp": 4 // fsdp}, batch_micro=micro)
        for n, (fsdp, micro) in enumerate([(2, 1), (4, 1), (2, 4)])
    ]
    assert variant_labels(runs) == ("torch fsdp2 tp2 micro1", "torch fsdp4 tp1 micro1", "torch fsdp2 tp2 micro4")


@pytest.mark.parametrize("axis", [one.name for one in fields(MeshShape)])
def test_a_mesh_axis_that_differs_is_in_every_name_even_where_other_settings_tell_the_runs_apart(axis):
    mesh = {one.name: 1 for one in fields(MeshShape)}
    sizes = (1, 2, 4)
    runs = [run(n, "jax", mesh={**mesh, axis: size}, batch_micro=n + 1, remat=("none", "layer", "dots")[n]) for n, size in enumerate(sizes)]
    found = variant_labels(runs)
    assert [f" {axis}{size} " in f" {name} " for name, size in zip(found, sizes, strict=True)] == [True] * 3
    assert found[1] == f"jax {axis}2 micro2 remat layer"


FULL = replace(ExperimentSpec(), lora=replace(ExperimentSpec().lora, rank=0))
SYSTEM = system_record(FULL, {"chat_template": "a" * 64, "tokenizer": "a" * 64}).contents | {"emulated": False}
OTHERS = {
    "hardware": ("gpu_2xh100", "gpu_2xh100"),
    "emulated": (True, "emulated"),
    "mesh.dcn": (2, "dcn2"),
    "mesh.data": (2, "data2"),
    "mesh.fsdp": (2, "fsdp2"),
    "mesh.tp": (2, "tp2"),
    "batch_micro": (2, "micro2"),
    "packing.mode": ("stream", "packing stream"),
    "packing.length": (512, "length 512"),
    "remat": ("dots", "remat dots"),
    "attention": ("flash", "flash"),
    "files.chat_template": ("c" * 64, "chat_template cccccccccccc…"),
    "files.tokenizer": ("b" * 64, "tokenizer bbbbbbbbbbbb…"),
}
"""By key of the system record: another value, and how a name says it."""


def test_every_key_of_the_system_record_has_its_words_here():
    assert {*_keys(SYSTEM)} == {*OTHERS, "backend"}


def test_that_a_whole_model_has_files_and_an_adapter_none_is_no_part_of_a_name():
    lora = {key: value for key, value in SYSTEM.items() if key != "files"}
    sciences = [{"trained": "full"}, {"trained": "lora"}]
    runs = [run(n, science=one, **system) for n, (one, system) in enumerate(zip(sciences, (SYSTEM, lora), strict=True))]
    assert variant_labels(runs) == ("torch trained full", "torch trained lora")


def _keys(value, prefix=""):
    for key, one in value.items():
        yield from _keys(one, f"{prefix}{key}.") if isinstance(one, dict) else [f"{prefix}{key}"]


def _with(values, path, value):
    first, _, rest = path.partition(".")
    return {**values, first: _with(values.get(first, {}), rest, value) if rest else value}


@pytest.mark.parametrize("key", OTHERS)
def test_a_key_of_the_system_record_that_differs_is_named_whatever_else_differs(key):
    value, said = OTHERS[key]
    changed = [
        SYSTEM,
        _with(SYSTEM, key, value),
        *(_with(SYSTEM, other, OTHERS[other][0]) for other in OTHERS if other != key),
    ]
    found = variant_labels([run(number, **system) for number, system in enumerate(changed)])
    assert f" {said} " in f" {found[1]} "
    assert len(set(found)) == len(changed)
    two = variant_labels([run(number, **system) for number, system in enumerate(changed[:2])])
    assert two[1] == f"torch {said}"


def test_long_values_are_cut_to_what_tells_them_apart():
    runs = [run(n, hardware=f"{name}-{'x' * 30}") for n, name in enumerate(("a", "b"))]
    assert [len(name) for name in variant_labels(runs)] == [len("torch ") + 24] * 2
    alike = [run(n, hardware=f"{'x' * 30}-{name}") for n, name in enumerate(("a", "b"))]
    assert [name[-2:] for name in variant_labels(alike)] == ["-a", "-b"]


def test_runs_that_nothing_tells_apart_have_their_ids():
    assert variant_labels([run(1), run(2), run(3, "jax")]) == ("torch 00000001", "torch 00000002", "jax")


def test_what_was_learnt_tells_apart_too_but_not_by_a_digest():
    sciences = [{"optim": {"rate": rate}, "data": str(rate) * 64} for rate in (1, 2)]
    assert variant_labels([run(n, science=one) for n, one in enumerate(sciences)]) == ("torch rate 1", "torch rate 2")


def test_every_kind_of_mesh_is_in_the_name():
    mesh = {"dcn": 1, "data": 1, "fsdp": 1, "tp": 1}
    meshes = [mesh, {**mesh, "data": 2}, {**mesh, "fsdp": 2}, {**mesh, "dcn": 2}]
    found = variant_labels([run(number, "jax", mesh=one, batch_micro=1) for number, one in enumerate(meshes)])
    assert found == ("jax dcn1 data1 fsdp1", "jax dcn1 data2 fsdp1", "jax dcn1 data1 fsdp2", "jax dcn2 data1 fsdp1")


def test_runs_whose_ids_begin_alike_have_distinct_names():
    runs = [
        Variant(f"00000000{number}", "jax", RunRecord("", {"lora": 8}, {"backend": "jax"}), run_id=f"00000000{number}") for number in (1, 2)
    ]
    assert variant_labels(runs) == ("jax 000000001", "jax 000000002")


def test_names_are_sorted_by_their_numbers():
    assert sorted(["jax micro16", "torch micro1", "jax micro2"], key=natural) == ["jax micro2", "jax micro16", "torch micro1"]
