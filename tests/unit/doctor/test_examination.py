"""The table as a whole: in order, within its time, without a secret, and the exit code that follows."""

import json
import subprocess
import sys
import time
from threading import Event

import pytest
from rich.console import Console as RichConsole

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.job import Job
from crossmesh.doctor.examination import OF_A_MACHINE, examine
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.doctor.report import Diagnosis, NodeReport, print_diagnosis, record
from crossmesh.jobs import doctor
from crossmesh.ports import free_port

FRAMEWORKS = {"jax", "torch", "vllm", "transformers", "mlflow"}


def test_findings_keep_the_order_of_the_checks_and_a_silent_one_costs_only_itself():
    never = Event()

    def check_slow_one(_spec):
        never.wait(60)
        yield ok("slow", "late")

    def check_first(_spec):
        time.sleep(0.05)
        yield ok("first", "a")

    def check_last(_spec):
        return [note("second", "b"), ok("third", "c")]

    start = time.monotonic()
    found = examine(ExperimentSpec(), (check_first, check_slow_one, check_last), within_s=0.5)
    assert time.monotonic() - start < 5
    never.set()
    assert [(one.name, one.status) for one in found] == [("first", "ok"), ("slow one", "note"), ("second", "note"), ("third", "ok")]
    assert found[1].found == "no answer within 0.5 s"


def test_a_check_that_breaks_is_a_bug_and_not_a_finding():
    def check_broken(_spec):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        examine(ExperimentSpec(), (check_broken,))


def test_a_fault_without_a_remedy_cannot_be_said():
    with pytest.raises(ValueError, match="names what mends it"):
        Finding("disk", "fault", "full")


def test_no_secret_is_shown(monkeypatch, capsys):
    monkeypatch.setenv("MY_API_KEY", "abcdef-123456")
    found = (fault("MLflow", "http://me:password@host is away: abcdef-123456", "curl http://me:password@host"),)
    report = Diagnosis(found, (NodeReport("f00", "10.0.0.2", "10.0.0.2, node f00 (2 x H100)", 0, found),))
    print_diagnosis(report, RichConsole(width=200))
    for text in (json.dumps(record(report)), capsys.readouterr().out):
        assert "password" not in text
        assert "abcdef-123456" not in text
        assert "curl" in text


def test_commands_are_printed_whole_on_a_narrow_terminal(capsys):
    mend = "python -m pip install --no-deps --require-hashes -r " + "/a/long/folder" * 10
    node = NodeReport("f00", "10.0.0.2", "10.0.0.2, node f00 (2 x H100)", 3, (note("memory", "scarce", mend),))
    print_diagnosis(Diagnosis((fault("lock", "x [1/2]", mend), ok("memory", "fine")), (node,)), RichConsole(width=60))
    said = capsys.readouterr().out
    assert f"  lock: {mend}\n" in said
    assert f"  memory on 10.0.0.2, node f00: {mend}\n" in said
    assert "[1/2]" in said
    assert said.endswith("1 fault, 1 note\n")


@pytest.mark.parametrize(("findings", "code"), [((ok("a", "b"), note("c", "d")), 0), ((ok("a", "b"), fault("c", "d", "e")), 1)])
def test_a_fault_is_exit_code_1(monkeypatch, capsys, findings, code):
    monkeypatch.setattr("crossmesh.doctor.diagnosis.diagnose", lambda *_, **__: Diagnosis(findings))
    ended = 0
    try:
        doctor.run(Job(ExperimentSpec(), doctor.DoctorKeys(output="json")))
    except SystemExit as error:
        ended = error.code
    assert ended == code
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["faults"], said["notes"], len(said["findings"])) == (code, 1 - code, 2)


def test_the_job_looks_at_everything_without_a_framework(checkout, clean_environment, tmp_path):
    script = (
        "import atexit, runpy, sys; sys.argv = sys.argv[1:]; "
        f"atexit.register(lambda: print(sorted({FRAMEWORKS!r} & set(sys.modules)), file=sys.stderr)); "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    environment = {**clean_environment, "HF_ENDPOINT": f"http://127.0.0.1:{free_port()}", "CROSSMESH_STORAGE": str(tmp_path / "storage")}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [
        sys.executable,
        "-c",
        script,
        str(checkout / "jobs" / "doctor.py"),
        "hardware=tpu_v5p_8",
        "model.weights=hf://a/b",
        "output=json",
    ]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "[]\n")
    assert time.monotonic() - start < 30  # 10 s on a laptop that does nothing else.
    said = json.loads(done.stdout.splitlines()[-1])
    found = {one["name"]: one for one in said["findings"]}
    assert found["hub"]["status"] == found["accelerators"]["status"] == "fault"
    assert said["faults"] == sum(one["status"] == "fault" for one in said["findings"])
    assert "USD an hour for hardware=tpu_v5p_8" in found["cost"]["found"]
    assert list((tmp_path / "storage").iterdir()) == []  # Nothing is left behind.
    wanted = {
        "interpreter",
        "lock",
        "disk, storage.root",
        "/dev/shm",
        "memory",
        "storage",
        "listening ports",
        "Ray's token",
        "secret files",
    }
    assert wanted | {"sandbox", "simulator", "MLflow", "hub", "accelerators", "cost", "clock"} <= set(found)
    assert len(OF_A_MACHINE) == 11
