"""The proof of a user's adapter as an artifact: beside the check's files, on the adapter's own run, and in the model registry."""

from dataclasses import replace
from pathlib import Path

from crossmesh.adapters.proof import PROOF_ARTIFACT, PROOF_FILE, TAG_PROOF
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.files import write_json
from crossmesh.track.tracked_run import TAG_VERSION, registered_name
from crossmesh.track.trackers import open_tracker
from crossmesh.verify.result import CheckResult

_ALIAS = "proven"


def keep_proof(result: CheckResult, folder: Path, run_id: str, spec: ExperimentSpec) -> CheckResult:
    """Write `result` to `proof.json` in `folder` and, when `run_id` names the run that trained the adapter, to that run.

    A passing proof also makes the adapter a version of a registered model, named after its base, with the proof's verdict and digests as
    tags and the alias `proven`. Returns the result with the name and number of that version among its figures.
    """
    write_json(folder / PROOF_FILE, result.record())
    if not run_id:
        return result
    tracker = open_tracker(spec.tracking, spec.storage)
    if not tracker.keeps_runs:
        return result
    verdict = "passed" if result.passed else "not passed"
    tags = {TAG_PROOF: verdict, **{f"{TAG_PROOF}.{key}": str(digest) for key, digest in result.figures["digests"].items()}}
    tracker.artifact_json(run_id, PROOF_ARTIFACT, result.record())
    tracker.tags(run_id, tags)
    if not result.passed:
        return result
    name = registered_name(spec.model.weights)
    tracker.register(run_id, "adapter", name, {"proof": verdict, **tags}, _ALIAS)
    version = tracker.run(run_id).tags[TAG_VERSION].rpartition("/")[2]
    return replace(result, figures={**result.figures, "registered": {"name": name, "version": version, "run_id": run_id}})
