"""Training runs as MLflow keeps them, turned back into variants of a report. Reads records and metrics; judges nothing."""

from crossmesh.errors import InputError
from crossmesh.report.variants import RunRecord, TrainingSummary, Variant
from crossmesh.track.tracker import TAG_KIND, TrackedRun, Tracker

_SHORT_ID = 8
_TOTALS = ("train/final_loss", "train/tokens_per_s_steady", "train/seconds", "train/tokens", "train/loss_tokens")


def stored_variant(tracker: Tracker, prefix: str) -> Variant:
    """Return the finished training run whose MLflow id begins with `prefix`; named after its backend and the id's first letters.

    Raises `InputError` when none or several do, or when the run is no finished training.
    """
    run = _only(tracker, prefix)
    missing = [name for name in _TOTALS if name not in run.metrics]
    if run.tags.get(TAG_KIND) != "train" or missing:
        raise InputError(
            f"runs={prefix!r} is the MLflow run {run.run_id} ({run.name}, {run.status}), no finished training. "
            "Allowed: runs of jobs/finetune.py that ended well; their `run_id` is in the job's result."
        )
    name = f"{run.name} {run.run_id[:_SHORT_ID]}"
    record = RunRecord(
        name,
        science=tracker.read_json(run.run_id, "records/science.json"),
        system=tracker.read_json(run.run_id, "records/system.json"),
        provenance=tracker.read_json(run.run_id, "records/provenance.json"),
    )
    totals = {name.removeprefix("train/"): run.metrics[name] for name in _TOTALS}
    training = TrainingSummary(
        losses=tracker.history(run.run_id, "train/loss"),
        final_loss=totals["final_loss"],
        tokens_per_s=totals["tokens_per_s_steady"],
        seconds=totals["seconds"],
        tokens=int(totals["tokens"]),
        loss_tokens=int(totals["loss_tokens"]),
    )
    return Variant(name, run.name, record, training=training, run_id=run.run_id)


def _only(tracker: Tracker, prefix: str) -> TrackedRun:
    found = tracker.matching(prefix)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"runs={prefix!r} begins the ids of {len(found)} runs: {', '.join(run.run_id for run in found)}. Give more letters."
        )
    raise InputError(
        f"runs={prefix!r}: no run of {tracker.uri} begins so. Look for it with: {tracker.ui_command} "
        "(A beginning such as 12e4 is read as a number: give the whole id.)"
    )
