"""The run whose last state another one begins with: found by its id, refused where its state does not fit."""

from dataclasses import replace
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import ScienceFacts, science_record, settings_digest, system_record
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import BackendSpec, CheckpointSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.errors import InputError
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracked_run import TAG_IDENTITY, TrackedRun
from crossmesh.trial.resume_checkpoint import check_resume_checkpoint, find_resume_checkpoint

ROWS = tuple((f"row-{step}",) for step in range(8))
SPEC = ExperimentSpec(
    storage=StorageSpec("/storage"), optim=OptimSpec(steps=8), checkpoint=CheckpointSpec(resume_from="before"), backend=BackendSpec("torch")
)


def science(spec: ExperimentSpec, rows: tuple[tuple[str, ...], ...], *, data: str = "d", resumed_from: str = "") -> Any:
    return science_record(spec, ScienceFacts("w", data, {"rank": spec.lora.rank}, rows, resumed_from))


class Runs:
    """A tracker that has one run: four steps by torch."""

    uri = "sqlite:///there.db"

    def __init__(self, *, status: str = "FINISHED", target: str = "", resumed_from: str = "") -> None:
        self.status = status
        self.files: dict[str, Any] = {
            "records/science.json": science(SPEC, ROWS[:4], resumed_from=resumed_from).contents,
            "records/system.json": system_record(SPEC).contents,
            "records/spec.json": {"checkpoint": {"target": target}},
        }

    def require_kept(self, key: str, value: object) -> None:
        """Runs outlive their job."""

    def run(self, run_id: str) -> TrackedRun:
        if run_id != "before":
            raise TrackingError(f"no run {run_id}")
        return TrackedRun(run_id, "torch", self.status, {TAG_IDENTITY: "f" * 64})

    def read_json(self, _run_id: str, path: str) -> Any:
        return self.files[path]


def test_it_says_where_the_state_is_and_how_far_it_got() -> None:
    found = find_resume_checkpoint(SPEC, Runs())
    assert found is not None
    assert (found.checkpoints, found.step, found.data_digest) == (f"/storage/trials/{'f' * 16}/checkpoints", 4, "d")
    assert found.science == science(SPEC, ROWS[:4]).digest
    elsewhere = find_resume_checkpoint(SPEC, Runs(target="gs://bucket/all/"))
    assert elsewhere is not None
    assert elsewhere.checkpoints == f"gs://bucket/all/{'f' * 16}"
    assert find_resume_checkpoint(replace(SPEC, checkpoint=CheckpointSpec()), Runs()) is None
    other = replace(SPEC, optim=OptimSpec(steps=8, learning_rate=0.5, weight_decay=0.3), lora=LoraSpec(dropout=0.1))
    check_resume_checkpoint(found, science(other, ROWS), other, Runs())


@pytest.mark.parametrize(
    ("spec", "rows", "data", "said"),
    [
        (replace(SPEC, lora=LoraSpec(rank=8)), ROWS, "d", "differs from this spec in LoRA:"),
        (replace(SPEC, model=ModelSpec(dtype="bfloat16")), ROWS, "d", "in precision:"),
        (SPEC, ROWS, "other", "in data:"),
        (SPEC, ROWS[::-1], "d", "in rows of its steps:"),
        (replace(SPEC, optim=OptimSpec(steps=8, stop_at=4)), ROWS[:4], "d", "ended after step 4, and this run ends after step 4"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_what_differs(spec: ExperimentSpec, rows: Any, data: str, said: str) -> None:
    found = find_resume_checkpoint(SPEC, Runs())
    assert found is not None
    with pytest.raises(InputError, match=said):
        check_resume_checkpoint(found, science(spec, rows, data=data), spec, Runs())


@pytest.mark.parametrize("past", ["", "an earlier run"])
def test_a_run_that_is_trained_as_its_origin_was_is_set_apart_by_no_more_than_that_one_was(past: str) -> None:
    found = find_resume_checkpoint(SPEC, Runs(resumed_from=past))
    assert found is not None
    assert found.settings == settings_digest(science(SPEC, ROWS).contents)
    assert replace(found, alike=True).sets_apart == past
    assert found.sets_apart == found.science == science(SPEC, ROWS[:4], resumed_from=past).digest
    faster = replace(SPEC, optim=OptimSpec(steps=8, learning_rate=0.5))
    assert found.settings != settings_digest(science(faster, ROWS).contents)
    longer = replace(SPEC, optim=OptimSpec(steps=9))  # Its learning rate falls otherwise.
    assert found.settings != settings_digest(science(longer, ROWS).contents)


def test_a_run_of_an_older_form_is_named_and_not_gone_on_from() -> None:
    runs = Runs()
    del runs.files["records/science.json"]["form"]
    with pytest.raises(InputError, match=r"recorded by another version of crossmesh \(form 1 of the science record.*lora\.adapter=before"):
        find_resume_checkpoint(SPEC, runs)


def test_a_run_that_is_not_there_not_finished_or_of_another_system_is_one_message() -> None:
    with pytest.raises(InputError, match=r"checkpoint\.resume_from='none' is not a training run of sqlite:///there.db"):
        find_resume_checkpoint(replace(SPEC, checkpoint=CheckpointSpec(resume_from="none")), Runs())
    with pytest.raises(InputError, match=r"the run is KILLED\. Finish it first"):
        find_resume_checkpoint(SPEC, Runs(status="KILLED"))
    with pytest.raises(InputError, match=r"ran on another system: backend torch there, jax here.*lora\.adapter=before"):
        find_resume_checkpoint(replace(SPEC, backend=BackendSpec("jax")), Runs())
    broken = Runs()
    del broken.files["records/spec.json"]["checkpoint"]
    with pytest.raises(InputError, match="is not a training run"):
        find_resume_checkpoint(SPEC, broken)
