"""The whole pipeline on a tiny Gemma 4, as a user runs it: both backends, one server, evaluation, report; again; and interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.integration

FRAMEWORKS = ["flax", "jax", "peft", "torch", "transformers", "tunix", "vllm"]
# Runs a job and says at exit which frameworks its process has loaded.
RUNNER = f"""
import atexit, runpy, sys
atexit.register(lambda: print("LOADED", sorted(set({FRAMEWORKS}) & set(sys.modules)), file=sys.stderr, flush=True))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SETTINGS = [
    "name=tiny",
    "model=tiny_gemma4",
    "data.max_length=1024",
    "data.rtl.train_rows=12",
    "data.rtl.heldout_rows=3",
    "data.rtl.hard_rows=2",
    "batch.size=2",
    "optim.steps=4",
    "checkpoint.every_steps=1",
    "eval.max_tokens=8",
    "serve.max_model_len=1024",
    "serve.port=0",
    "serve.kv_cache_gib=0.25",
    "output=json",
]


class Place:
    """A storage root and a working folder for pipeline runs."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        self.folder, self.checkout, self.storage = folder, checkout, folder / "storage"

    def start(self, *overrides: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
        environment["CROSSMESH_STORAGE"] = str(self.storage)
        job = str(self.checkout / "jobs" / "pipeline.py")
        return subprocess.Popen(
            [sys.executable, "-c", RUNNER, job, *SETTINGS, *overrides],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def client(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.storage / 'mlflow.db'}")

    def run(self, *overrides: str) -> tuple[dict, str]:
        process = self.start(*overrides)
        out, err = process.communicate(timeout=900)
        assert process.returncode == 0, err
        assert survivors(process.pid) == []
        return json.loads(out.splitlines()[-1]), err


def tracked(client: MlflowClient) -> list:
    return client.search_runs([client.get_experiment_by_name("crossmesh").experiment_id])


def survivors(group: int) -> list[str]:
    """Command lines of what still runs of a job that led process group `group`, its Ray included (which has groups of its own)."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, ProcessLookupError):
            continue
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory, checkout) -> Place:
    return Place(tmp_path_factory.mktemp("pipeline"), checkout)


@pytest.fixture(scope="module")
def first(place) -> tuple[dict, str]:
    return place.run()


def test_both_backends_are_alike_and_reported(first, place):
    report, _ = first
    assert report["comparable"] is True
    assert report["variants"].keys() == {"base", "torch", "jax"}
    losses = {name: dict(report["variants"][name]["losses"]) for name in ("torch", "jax")}
    assert losses["torch"].keys() == losses["jax"].keys() == {1, 2, 3, 4}
    assert losses["jax"] == pytest.approx(losses["torch"], rel=1e-3)
    for name, variant in report["variants"].items():
        assert variant["n"] == 3
        assert variant["pass_at_1"] == 0.0
        assert (variant["final_loss"] is None) == (name == "base")
    fingerprints = [report["variants"][name]["fingerprints"] for name in ("torch", "jax")]
    assert fingerprints[0]["science"] == fingerprints[1]["science"] == report["science_fingerprint"]
    assert fingerprints[0]["system"] != fingerprints[1]["system"]
    assert [difference["key"] for difference in report["differences"]] == ["attention", "backend"]
    assert (
        json.loads((place.folder / "outputs" / "tiny" / "report.json").read_text())["science_fingerprint"] == report["science_fingerprint"]
    )
    assert "<svg" in (place.folder / "outputs" / "tiny" / "report.html").read_text()


def test_the_driver_loaded_no_framework(first):
    assert first[1].splitlines()[-1] == "LOADED []"


def test_everything_is_tracked_once(first, place):
    client = place.client()
    runs = {run.info.run_name: run for run in tracked(client)}
    assert runs.keys() == {"tiny", "torch", "jax", "evaluate base", "evaluate torch", "evaluate jax"}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    parent = runs["tiny"].info.run_id
    assert {run.data.tags["mlflow.parentRunId"] for name, run in runs.items() if name != "tiny"} == {parent}
    assert runs["torch"].data.tags["crossmesh.science"] == runs["jax"].data.tags["crossmesh.science"]
    assert [metric.step for metric in client.get_metric_history(runs["jax"].info.run_id, "train/loss")] == [1, 2, 3, 4]
    stored = {file.path for folder in ("records", "adapter") for file in client.list_artifacts(runs["torch"].info.run_id, folder)}
    assert {"records/science.json", "records/system.json", "records/provenance.json", "adapter/adapter_model.safetensors"} <= stored
    for run in runs.values():
        assert "records/provenance.json" in {file.path for file in client.list_artifacts(run.info.run_id, "records")}
    assert {file.path for file in client.list_artifacts(parent, "report")} == {
        "report/report.html",
        "report/report.json",
        "report/report.md",
    }


def test_a_second_run_computes_nothing_again(first, place):
    started = time.monotonic()
    again, said = place.run()
    assert again == first[0]
    assert said.count("already done") == 2
    assert "serve:" not in said
    assert time.monotonic() - started < 120


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_interrupted_anywhere_it_ends_cleanly_and_the_next_run_continues(first, tmp_path, checkout):
    place = Place(tmp_path, checkout)
    for moment in ("steps 1/4", "evaluate: torch"):
        process = place.start()
        assert process.stderr is not None
        for line in process.stderr:
            if moment in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(timeout=120) == 130, said
        assert "interrupted" in said
        assert "Traceback" not in said
        assert survivors(process.pid) == []
    report, _ = place.run()
    assert report["comparable"] is True
    assert report["variants"]["torch"]["losses"] == first[0]["variants"]["torch"]["losses"]
    client = place.client()
    trained = [run for run in tracked(client) if run.info.run_name == "torch"]
    assert [run.info.status for run in trained] == ["FINISHED"]
    assert [metric.step for metric in client.get_metric_history(trained[0].info.run_id, "train/loss")] == [1, 2, 3, 4]
