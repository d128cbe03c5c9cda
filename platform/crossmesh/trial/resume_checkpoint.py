"""The finished run whose last training state another one begins with (`checkpoint.resume_from`): found, and held against the spec.

The state fits whatever keeps its shapes and its place in the data; what may differ is how the optimizer goes on. The system is the same, so
that speed and cost of the run, which has the steps of its origin too, are those of one system.
"""

from collections.abc import Mapping
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import SCIENCE_FORM, Record, form_of, settings_digest, system_record
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.track.tracked_run import TAG_IDENTITY
from crossmesh.track.tracker import Tracker
from crossmesh.train.train_job import ResumeCheckpoint, checkpoint_folder, checkpoint_target

_MUST_BE_EQUAL = {"base": "base model", "data": "data", "trained": "what is trained", "lora": "LoRA", "precision": "precision"}
"""Parts of a science record, in words."""


def find_resume_checkpoint(spec: ExperimentSpec, tracker: Tracker) -> ResumeCheckpoint | None:
    """Find what `checkpoint.resume_from` names; None when it names nothing. `check_resume_checkpoint` checks it against the spec.

    Raises `InputError` when there is no such run, when it is not finished, or when it ran on another system.
    """
    run_id = spec.checkpoint.resume_from
    if not run_id:
        return None
    tracker.require_kept("checkpoint.resume_from", run_id)
    try:
        run = tracker.run(run_id)
        science, system, own = (tracker.read_json(run_id, f"records/{name}.json") for name in ("science", "system", "spec"))
        identity, rows = run.tags[TAG_IDENTITY], science["steps"]
        target, digest, form = own["checkpoint"]["target"], science["data"]["digest"], form_of(science)
    except (CrossmeshError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"checkpoint.resume_from={run_id!r} is not a training run of {tracker.uri} that can be read ({_first_line(error)}). Give the "
            "id of a FINISHED run of kind train; `make ui` shows them."
        ) from error
    if run.status != "FINISHED":
        raise InputError(f"checkpoint.resume_from={run_id!r}: the run is {run.status}. Finish it first: run its job again.")
    if form != SCIENCE_FORM:
        raise InputError(
            f"checkpoint.resume_from={run_id!r} was recorded by another version of crossmesh (form {form} of the science record, not "
            f"{SCIENCE_FORM}): what it learnt cannot be held against this spec. Train it again, or continue from its adapter alone: "
            f"lora.adapter={run_id}."
        )
    differs = {key: (system.get(key), value) for key, value in system_record(spec).contents.items() if system.get(key) != value}
    if differs:
        shown = "; ".join(f"{key} {theirs} there, {own} here" for key, (theirs, own) in differs.items())
        raise InputError(
            f"checkpoint.resume_from={run_id!r} ran on another system: {shown}. Give this run the same, or continue from its "
            f"adapter alone: lora.adapter={run_id}."
        )
    folder = spec.storage.path / "trials" / identity[:16]
    place = checkpoint_target(target, folder) or str(checkpoint_folder(folder))
    began = science.get("resumed_from", "")
    return ResumeCheckpoint(place, len(rows), Record(science).digest, digest, settings_digest(science), began)


def check_resume_checkpoint(resume: ResumeCheckpoint, science: Record, spec: ExperimentSpec, tracker: Tracker) -> None:
    """Raise `InputError` unless a run with this science can begin where `resume` ended."""
    run_id = spec.checkpoint.resume_from
    theirs, own = tracker.read_json(run_id, "records/science.json"), science.contents
    other = [words for part, words in _MUST_BE_EQUAL.items() if _shape(theirs[part]) != _shape(own[part])]
    if not other and own["steps"][: resume.step] != theirs["steps"]:
        other = ["rows of its steps"]
    if other:
        raise InputError(
            f"checkpoint.resume_from={run_id!r} differs from this spec in {' and '.join(other)}: its state does not fit. Only optim and "
            "lora.dropout may differ. Give the rest as that run had it."
        )
    if resume.step >= spec.optim.last_step:
        raise InputError(
            f"checkpoint.resume_from={run_id!r} ended after step {resume.step}, and this run ends after step {spec.optim.last_step}: "
            f"nothing is left. Give optim.steps, or optim.stop_at, above {resume.step}."
        )


def _shape(part: Any) -> Any:
    return {key: value for key, value in part.items() if not key.startswith("dropout")} if isinstance(part, Mapping) else part


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
