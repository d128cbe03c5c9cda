"""MLflow itself: a fresh sqlite file, runs, resuming, several processes and a server that is away at the start."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.errors import CrossmeshError
from crossmesh.track.mlflow.local_store import MlflowDatabase
from crossmesh.track.mlflow.tracker import MlflowTracker
from crossmesh.track.provenance import GitState, Provenance
from crossmesh.track.tracker import RunQuery, RunSettings

pytestmark = pytest.mark.integration

CLEAN_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "platform"), "PATH": "/usr/bin:/bin"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return StorageSpec(root=str(tmp_path_factory.mktemp("a root") / "données #1;&"))


@pytest.fixture
def tracker(storage):
    return MlflowTracker(TrackingSpec(), storage)


def test_a_run_keeps_what_it_was_given(tracker, storage, tmp_path):
    spec = ExperimentSpec(name="x" * 7_000, storage=storage)
    parent = tracker.start("demo", "experiment")
    run = tracker.start("torch", "train", parent=parent, identity="id-1", tags={"note": "n" * 9_000}, params=spec)
    tracker.records(run, science={"b": 1, "a": [1, 2]}, system={"micro": 4})
    tracker.provenance(run, Provenance(python="3.11.0", libraries={"ray": "2.60.0"}, git=GitState("abc123", diff="+one\n")))
    tracker.artifact_json(run, "report/report.json", {"x": None})
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights.bin").write_bytes(b"\x00\x01")
    tracker.artifact_folder(run, tmp_path / "adapter", "adapter")
    tracker.artifact_file(run, tmp_path / "adapter" / "weights.bin", "single")
    tracker.finish(run)

    stored = tracker.run(run)
    assert stored.status == "FINISHED"
    assert stored.params["optim.steps"] == "30"
    assert stored.params["name"].startswith("artifact params/name.txt (7000 characters")
    assert stored.tags["note"].startswith("artifact tags/note.txt")
    assert stored.tags["mlflow.source.git.commit"] == "abc123"
    assert stored.tags["crossmesh.science"] == "94a786c3662bc7beeb598efa7d8cb58d7bea25d6c275ea9785a0230ff1f8c2ba"
    assert tracker.read_json(run, "records/science.json") == {"a": [1, 2], "b": 1}
    artifacts = storage.path / "artifacts" / run / "artifacts"
    assert (artifacts / "params" / "name.txt").read_text() == "x" * 7_000
    assert (artifacts / "adapter" / "weights.bin").read_bytes() == b"\x00\x01"
    assert (artifacts / "single" / "weights.bin").exists()
    assert (artifacts / "records" / "git.diff").read_text() == "+one\n"
    assert [child.run_id for child in tracker.children(parent)] == [run]


def test_each_metric_and_step_is_there_once_also_after_a_resume(tracker, storage):
    run = tracker.start("torch", "train")
    tracker.metrics(run, {"loss": 2.0, "rate": 0.1}, 0)
    tracker.metrics(run, {"loss": 1.0}, 1)
    tracker.metrics(run, {"loss": 9.0}, 1)

    later = MlflowTracker(TrackingSpec(), storage)
    assert later.resume(run).status == "RUNNING"
    later.metrics(run, {"loss": 9.0, "rate": 0.2}, 1)
    later.metrics(run, {"loss": 0.5}, 2)
    later.finish(run, "KILLED")
    assert later.history(run, "loss") == ((0, 2.0), (1, 1.0), (2, 0.5))
    assert later.history(run, "rate") == ((0, 0.1), (1, 0.2))


def test_only_a_finished_run_is_found_by_identity(tracker):
    run = tracker.start("jax", "train", identity="id-2")
    assert tracker.find("id-2") is None
    assert tracker.find("id-2", status="RUNNING").run_id == run
    tracker.finish(run, "FAILED")
    assert tracker.find("id-2") is None
    again = tracker.start("jax", "train", identity="id-2")
    tracker.finish(again)
    assert tracker.find("id-2").run_id == again
    assert tracker.find("id-3") is None


def test_system_metrics_are_logged_and_can_be_switched_off(tracker, storage, monkeypatch):
    monkeypatch.setattr("crossmesh.track.system.EVERY_S", 0.2)
    run = tracker.start("torch", "train")
    with tracker.system_metrics(run):
        time.sleep(1.0)
    assert tracker.run(run).metrics["system/system_memory_usage_percentage"] > 0
    silent = MlflowTracker(TrackingSpec(system_metrics=False), storage)
    other = silent.start("jax", "train")
    with silent.system_metrics(other):
        time.sleep(0.5)
    assert silent.run(other).metrics == {}


def test_an_unknown_run_is_one_clear_error(tracker):
    with pytest.raises(CrossmeshError, match=r"Could not read run no-such-run at MLflow, sqlite:////.*\. Check the id"):
        tracker.run("no-such-run")


WRITERS = """
import json, multiprocessing, sys
import mlflow  # before the fork, so that four processes share one slow import; no connection is open yet
from crossmesh.config.experiment import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.tracker import MlflowTracker

def write_run(root):
    tracker = MlflowTracker(TrackingSpec(experiment="shared"), StorageSpec(root=root))
    run = tracker.start("worker", "train")
    for step in range(20):
        tracker.metrics(run, {"loss": float(step)}, step)
    tracker.finish(run)
    return tracker.experiment(), len(tracker.history(run, "loss"))

with multiprocessing.get_context("fork").Pool(4) as pool:
    print(json.dumps(pool.map(write_run, [sys.argv[1]] * 4, chunksize=1)))
"""


def test_four_processes_on_a_fresh_file_migrate_it_once(tmp_path):
    root = tmp_path / "root"
    command = [sys.executable, "-c", WRITERS, str(root)]
    done = subprocess.run(command, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=240)
    assert done.stderr == ""
    assert json.loads(done.stdout) == [["1", 20]] * 4
    assert sorted(path.name for path in root.iterdir()) == ["journal", "mlflow.db", "mlflow.db.lock"]
    assert list(root.glob("journal/*/*.jsonl")) == []


DRIVER = """
import sys
from crossmesh.config.experiment import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.tracker import MlflowTracker
before = "mlflow" in sys.modules
tracker = MlflowTracker(TrackingSpec(), StorageSpec(root=sys.argv[1]))
run = tracker.start("worker", "train")
with tracker.system_metrics(run):
    tracker.metrics(run, {"loss": 1.0}, 0)
tracker.artifact_text(run, "a.txt", "a")
tracker.finish(run)
print(before, sorted({"torch", "jax", "transformers", "vllm", "tensorflow", "flax"} & set(sys.modules)))
"""


def test_a_driver_that_tracks_is_quiet_and_loads_no_framework(tmp_path):
    """Also: MLflow comes only with the first connection, and no `mlruns` appears where the job was started."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "root")]
    done = subprocess.run(command, cwd=cwd, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=False, timeout=240)
    assert (done.stdout, done.stderr) == ("False []\n", "")
    assert list(cwd.iterdir()) == []


AWAY = """
import json, sys, time
from crossmesh.errors import CrossmeshError
from crossmesh.config.experiment import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.tracker import MlflowTracker
started = time.monotonic()
try:
    MlflowTracker(TrackingSpec(uri="http://user:word@127.0.0.1:9"), StorageSpec(root=sys.argv[1])).start("x", "train")
except CrossmeshError as error:
    print(json.dumps({"message": str(error), "seconds": time.monotonic() - started}))
"""


def test_a_server_that_is_away_is_one_error_within_seconds(tmp_path):
    command = [sys.executable, "-c", AWAY, str(tmp_path)]
    done = subprocess.run(command, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=True, timeout=240)
    result = json.loads(done.stdout)
    assert done.stderr == ""
    assert result["message"].startswith(
        "Could not open experiment 'crossmesh' at MLflow, http://***@127.0.0.1:9: Connection refused. Start that server"
    )
    assert "word" not in result["message"]
    assert result["seconds"] < 40


@pytest.mark.parametrize("read_itself", [True, False])
def test_every_reader_of_runs_reads_all_of_them(tmp_path, monkeypatch, read_itself):
    monkeypatch.setattr("crossmesh.track.mlflow.tracker._PAGE", 2)
    monkeypatch.setattr("crossmesh.track.mlflow.local_store._AT_ONCE", 2)
    if not read_itself:
        monkeypatch.setattr(MlflowDatabase, "search", lambda *_: None)
    tracker = MlflowTracker(TrackingSpec(), StorageSpec(str(tmp_path)))
    parent = tracker.start("sweep", "sweep")
    made = {tracker.start("torch", "train", parent=parent, params={"hardware": {"name": name}}) for name in ("cpu", "a", "a", "b", "cpu")}
    for run in made:
        tracker.finish(run)
    assert {run.run_id for run in tracker.children(parent)} == made
    assert {run.run_id for run in tracker.recent("train")} == made
    assert len(tracker.recent("train", without={"hardware.name": "cpu"})) == 3
    assert {run.run_id for run in tracker.matching("")} == {*made, parent}


def test_a_local_store_that_is_read_itself_says_what_mlflow_says(tmp_path):
    tracker = MlflowTracker(TrackingSpec(), StorageSpec(str(tmp_path)))
    parent = tracker.start("sweep", "sweep")
    for number, name in enumerate(("cpu", "tpu_v5p_8", "cpu", "gpu_2xh100")):
        params = {"hardware": {"name": name}, "optim": {"steps": number}} if number else {"optim": {"steps": 0}}
        run = tracker.start(
            f"run {number}", "train", parent=parent, identity=f"id-{number % 2}", params=RunSettings(params, emulated=number == 1)
        )
        tracker.tags(run, {"version.torch": "2.13.0", "Version.x": "1"})
        for step in range(3):
            tracker.metrics(run, {"loss": math.nan if (number, step) == (2, 1) else 1.0 / (number + step + 1), "watts": 100.0 * step}, step)
        tracker.finish(run, "KILLED" if number == 3 else "FINISHED")
    deleted = tracker.start("gone", "train", parent=parent)
    tracker._client.delete_run(deleted)
    every = [
        RunQuery(),
        RunQuery({"crossmesh.kind": "train"}, "FINISHED"),
        RunQuery({"crossmesh.kind": "train"}, without={"hardware.name": "cpu"}),
        RunQuery({"mlflow.parentRunId": parent}),
        RunQuery({"crossmesh.identity": "id-1", "crossmesh.kind": "train"}, "KILLED"),
        RunQuery(prefix=parent[:3]),
        RunQuery({"crossmesh.kind": "nothing"}),
    ]
    found = [tracker.search(wanted) for wanted in every]
    assert [repr(one) for one in map(_plain, found)] == [repr(one) for one in map(_plain, (_mlflow(tracker, wanted) for wanted in every))]
    assert [len(runs) for runs in found] == [5, 3, 2, 4, 1, 1, 0]
    assert all("version.torch" not in run.tags and run.tags["Version.x"] == "1" for run in found[3])
    assert tracker.search(every[1], limit=2) == found[1][:2]
    ids = [run.run_id for run in found[3]]
    assert {run: repr(values) for run, values in tracker.histories(ids, "loss").items()} == {
        run: repr(tracker.history(run, "loss")) for run in ids
    }
    assert tracker.means(ids, "watts") == dict.fromkeys(ids, 100.0)
    assert tracker.means(ids, "nothing") == {}
    read_itself = {name: (tracker.histories(ids, name), tracker.means(ids, name)) for name in ("loss", "watts", "nothing")}
    tracker._local = None
    assert repr({name: (tracker.histories(ids, name), tracker.means(ids, name)) for name in read_itself}) == repr(
        {name: ({run: one[run] for run in ids if run in one}, {run: other[run] for run in ids if run in other})
         for name, (one, other) in read_itself.items()}
    )  # fmt: skip


def _mlflow(tracker, wanted):
    return tracker._search_mlflow(tracker.experiment(), wanted, 0)


def _plain(runs):
    return [
        (run.run_id, run.name, run.status, sorted(run.tags.items()), sorted(run.params.items()), sorted(run.metrics.items()))
        for run in runs
    ]


def test_metrics_of_any_name_and_value_are_stored_under_names_that_mlflow_takes(storage):
    said = []
    tracker = MlflowTracker(TrackingSpec(), storage, said.append)
    run = tracker.start("odd", "evaluate")
    values = {"hit@1": 0.5, "hit#1": 0.25, "a//b": 1.0, "loss": 2.0, "none": None, "huge": 10**400, "nan": math.nan, "inf": math.inf}
    tracker.metrics(run, values, 0)
    tracker.metrics(run, {"hit@1": 0.75}, 1)
    tracker.finish(run)
    names = tracker.read_json(run, "records/metric_names.json")
    found = tracker.run(run).metrics
    assert sorted(names.values()) == ["a//b", "hit#1", "hit@1"]
    assert {names.get(key, key): value for key, value in found.items() if key != "nan"} == {
        "hit@1": 0.75, "hit#1": 0.25, "a//b": 1.0, "loss": 2.0, "inf": found["inf"]
    }  # fmt: skip
    assert math.isnan(found["nan"])
    assert found["inf"] > 1e300
    assert [line.partition(" is not a number")[0] for line in said] == ["The metric 'none'", "The metric 'huge'"]
