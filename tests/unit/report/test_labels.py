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


def test_names_are_sorted_by_their_numbers():
    assert sorted(["jax micro16", "torch micro1", "jax micro2"], key=natural) == ["jax micro2", "jax micro16", "torch micro1"]
