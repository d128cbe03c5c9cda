"""jobs/compare.py: stored runs side by side, from their records and metrics alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.fingerprint import SCIENCE_FORM, TRAINED_RECORD, Record, digest_of, trained_record
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.errors import InputError
from crossmesh.report import keeping
from crossmesh.report.gate.integrity import beside_weights
from crossmesh.report.gate.selection import find_run
from crossmesh.report.keeping import MANY, Keeper, Kept, keep_report
from crossmesh.report.stored import stored_variants
from crossmesh.track.tracked_run import TAG_TRAINED
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compare") / "storage"


@pytest.fixture(scope="module")
def runs(storage: Path) -> dict[str, str]:
    """A sweep with two runs of one science, one of another, and one that did not finish; `slow` trains as `torch` does, but slower.

    `bare` has no record beside its weights, nor the tag that says there is one.
    """
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    made = {"sweep": tracker.start("ranks", "sweep")}
    for name, rank, loss, rate in (
        ("torch", 8, 1.5, 100.0),
        ("jax", 8, 1.25, 100.0),
        ("other", 16, 1.0, 100.0),
        ("slow", 8, 1.5, 90.0),
        ("bare", 8, 1.5, 100.0),
        ("half", 8, None, 1.0),
    ):
        parent = None if name == "bare" else made["sweep"]
        run = tracker.start(name, "train", parent=parent, params={"name": "ranks", "hardware": {"name": "tpu_v5p_8"}})
        science, system = Record({"form": SCIENCE_FORM, "lora": {"rank": rank}, "steps": [["a", "b"]] * 20}), Record({"backend": name})
        tracker.records(run, science.contents, system.contents)
        if name != "bare":
            prove(tracker, run, science, system)
        tracker.artifact_json(run, "records/provenance.json", {"python": "3.11"})
        for step in range(1, 21):
            speed = rate * (1 + 0.002 * (step % 5))
            values = {"train/loss": 2.0 if step == 1 else 1.75, "train/tokens_per_s": speed, "train/padded_tokens_per_s": 2 * speed}
            tracker.metrics(run, values, step)
        if loss is not None:
            tracker.metrics(run, {"train/loss": loss}, 21)
            totals = {
                "final_loss": loss,
                "tokens_per_s_steady": rate * 1.004,
                "padded_tokens_per_s_steady": rate * 2.008,
                "seconds": 4.0,
                "tokens": 400,
                "loss_tokens": 60,
            }
            tracker.metrics(run, {f"train/{key}": value for key, value in totals.items()}, 21)
        tracker.finish(run, "FAILED" if loss is None else "FINISHED")
        made[name] = run
    tracker.finish(made["sweep"])
    return made


def prove(tracker: Tracker, run: str, science: Record, system: Record) -> None:
    beside = trained_record(science, system, f"weights of {run}")
    tracker.artifact_json(run, beside_weights(science.contents), beside)
    tracker.tags(run, {TAG_TRAINED: digest_of(beside)})


def compare(checkout: Path, storage: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    where = [f"storage.root={storage}", f"folder={storage.parent / 'reports'}"]
    command = [sys.executable, str(checkout / "jobs" / "compare.py"), *where, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_runs_of_one_science_are_compared_with_their_losses(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch']},{runs['jax']}]", "output=json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (said["comparable_quality"], said["comparable_speed"]) == (True, True)
    assert [(one["scope"], one["key"]) for one in said["differences"]] == [("system", "backend")]
    variants = {variant["backend"]: variant for variant in said["variants"].values()}
    assert (variants["torch"]["losses"][0], variants["torch"]["losses"][-1]) == ([1, 2.0], [21, 1.5])
    assert (variants["jax"]["final_loss"], variants["jax"]["tokens_per_s"], variants["jax"]["tokens"]) == (1.25, 100.4, 400)
    assert variants["jax"]["run_id"] == runs["jax"]
    cells = {one["key"]: one["cells"]["jax"] for one in said["quantities"]}
    assert cells["usd"]["value"] == pytest.approx(4 / 3600 * 16.80)  # The catalogue's v5p-8.
    assert cells["seconds_per_sample"]["value"] == pytest.approx(4 / 40)
    assert cells["padded_tokens_per_s"]["value"] == pytest.approx(200.8)


def test_a_sweep_is_compared_in_groups_with_what_it_left_out_and_logged_once(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = [compare(checkout, storage, f"sweep={runs['sweep']}", "output=json") for _ in range(2)]
    first, second = (json.loads(one.stdout.splitlines()[-1]) for one in done)
    assert [(one["group"], len(one["runs"]), one["words"]) for one in first["groups"]] == [
        ("A", 3, "lora.rank 8"),
        ("B", 1, "lora.rank 16"),
    ]
    assert first["gates"]["speed"]["state"] == "comparable in groups"
    assert first["notes"] == [f"Left out: half {runs['half'][:8]} (FAILED)."]
    assert first == second  # The MLflow run of the report included.
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    folder = tracker.download(first["run_id"], "report", storage.parent)
    assert {file.name for file in folder.iterdir()} == {"report.html", "report.md", "report.json"}
    assert (folder / "report.html").read_bytes() == Path(first["report"]).read_bytes()


@pytest.mark.parametrize(
    ("candidate", "limit", "code", "said"),
    [
        (
            "slow",
            "-3%",
            2,
            "fail_if.tokens_per_s cannot be judged: -10.0% is beyond the limit, and one run each says nothing of the machine",
        ),
        ("slow", "-15%", 0, "within the limit"),
        ("other", "-3%", 2, "not comparable in speed: science.lora.rank"),
    ],
)
def test_a_regression_fails_a_pipeline(
    checkout: Path, storage: Path, runs: dict[str, str], candidate: str, limit: str, code: int, said: str
) -> None:
    done = compare(checkout, storage, f"baseline={runs['torch']}", f"candidate={runs[candidate]}", f"fail_if.tokens_per_s={limit}")
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.split())


def test_another_science_is_named_and_not_compared(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch'][:31]},{runs['other']}]")
    assert done.returncode == 0, done.stderr
    assert "not comparable" in done.stdout.lower()
    assert "science.lora.rank" in done.stdout


def test_a_run_without_a_record_is_named_and_comparable_with_none(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch']},{runs['bare']}]", "output=json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["comparable_quality"], said["comparable_speed"], said["winners"]) == (False, False, [])
    assert ("science", "record_beside_weights") in {(one["scope"], one["key"]) for one in said["differences"]}
    assert [note for note in said["notes"] if note.startswith("bare: without a record beside the weights")]


def test_a_wholly_trained_model_has_its_record_too(storage: Path) -> None:
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    run = tracker.start("whole", "train", params={"name": "whole"})
    science, system = Record({"form": SCIENCE_FORM, "trained": "full", "lora": {}, "steps": []}), Record({"backend": "torch"})
    tracker.records(run, science.contents, system.contents)
    tracker.artifact_json(run, "records/provenance.json", {"python": "3.11"})
    tracker.metrics(run, {f"train/{key}": 1.0 for key in ("final_loss", "tokens_per_s_steady", "seconds", "tokens", "loss_tokens")}, 1)
    prove(tracker, run, science, system)
    tracker.finish(run)
    (variant,) = stored_variants(tracker, [tracker.run(run)])
    assert variant.record.science == science.contents
    beside = next(storage.rglob(f"{run}/artifacts/model/{TRAINED_RECORD}"))
    beside.write_text(json.dumps({**json.loads(beside.read_text()), "science": "f" * 64}))
    with pytest.raises(InputError, match="the record beside its weights has the science ffff"):
        stored_variants(tracker, [tracker.run(run)])
    beside.write_text("{")
    with pytest.raises(InputError, match="the record beside its weights has the science None"):
        stored_variants(tracker, [tracker.run(run)])


@pytest.mark.parametrize("program", [sys.executable, "/bin/false"])
def test_of_many_runs_another_process_keeps_the_report_and_where_it_fails_this_one(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    folder, own = tmp_path / "made", []
    folder.mkdir()
    (folder / "report.json").write_text("{}")
    monkeypatch.setattr(keeping.sys, "executable", program)
    monkeypatch.setattr(keeping, "keep_report", lambda *given: own.append(given) or keep_report(*given))
    with Keeper(tracker, TrackingSpec(), StorageSpec(str(storage)), MANY) as keeper:
        run = keeper.keep(Kept("many", f"many {program}", str(folder), MANY, "compare"))
    assert (len(own) == 1) == (program == "/bin/false")
    found = tracker.find(f"many {program}")
    assert found is not None
    assert (found.run_id, found.status, found.params["runs"]) == (run, "FINISHED", str(MANY))
    assert tracker.read_json(run, "report/report.json") == {}


def test_one_run_alone_is_the_users_error(checkout: Path, storage: Path, runs: dict[str, str]) -> None:
    done = compare(checkout, storage, f"runs=[{runs['torch']},{runs['torch']}]")
    assert done.returncode == 2
    assert "two or more different MLflow run ids" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [("zz", "runs='zz': no run of sqlite"), ("half", r"\(half, train, FAILED\), no finished"), ("", r"begins the ids of \d+ runs")],
)
def test_what_names_no_training_run_is_one_message(storage: Path, runs: dict[str, str], given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_run(open_tracker(TrackingSpec(), StorageSpec(str(storage))), "runs", runs.get(given, given))
