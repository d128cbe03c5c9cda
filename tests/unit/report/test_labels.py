from crossmesh.report.labels import labels, natural
from crossmesh.report.variants import RunRecord, Variant


def run(number, backend="torch", science=None, **system):
    record = RunRecord(f"run{number}", science or {"lora": 8}, {"backend": backend, **system})
    return Variant(record.name, backend, record, run_id=f"{number:08d}" * 4)


def test_two_backends_are_called_by_their_names():
    assert labels([run(1), run(2, "jax")]) == ("torch", "jax")


def test_settings_that_tell_runs_apart_are_in_the_name_and_others_are_not():
    runs = [
        run(n, hardware="cpu", mesh={"fsdp": fsdp, "tp": 4 // fsdp}, batch_micro=micro)
        for n, (fsdp, micro) in enumerate([(2, 1), (4, 1), (2, 4)])
    ]
    assert labels(runs) == ("torch fsdp2 micro1", "torch fsdp4 micro1", "torch fsdp2 micro4")


def test_runs_that_nothing_tells_apart_have_their_ids():
    assert labels([run(1), run(2), run(3, "jax")]) == ("torch 00000001", "torch 00000002", "jax")


def test_what_was_learnt_tells_apart_too_but_not_by_a_digest():
    sciences = [{"optim": {"rate": rate}, "data": str(rate) * 64} for rate in (1, 2)]
    assert labels([run(n, science=one) for n, one in enumerate(sciences)]) == ("torch rate 1", "torch rate 2")


def test_every_kind_of_mesh_is_in_the_name():
    mesh = {"dcn": 1, "data": 1, "fsdp": 1, "tp": 1}
    meshes = [mesh, {**mesh, "data": 2}, {**mesh, "fsdp": 2}, {**mesh, "dcn": 2}]
    found = labels([run(number, "jax", mesh=one, batch_micro=1) for number, one in enumerate(meshes)])
    assert found == ("jax dcn1 data1 fsdp1", "jax dcn1 data2 fsdp1", "jax dcn1 data1 fsdp2", "jax dcn2 data1 fsdp1")
    devices = [run(number, "jax", mesh=mesh, batch_micro=1, cpu_devices=count) for number, count in enumerate((1, 2))]
    assert labels(devices) == ("jax cpu_devices 1", "jax cpu_devices 2")


def test_runs_whose_ids_begin_alike_have_distinct_names():
    runs = [
        Variant(f"00000000{number}", "jax", RunRecord("", {"lora": 8}, {"backend": "jax"}), run_id=f"00000000{number}") for number in (1, 2)
    ]
    assert labels(runs) == ("jax 000000001", "jax 000000002")


def test_names_are_sorted_by_their_numbers():
    assert sorted(["jax micro16", "torch micro1", "jax micro2"], key=natural) == ["jax micro2", "jax micro16", "torch micro1"]
