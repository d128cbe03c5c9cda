"""The proof that an adapter is the same on every engine, as `crossmesh verify check=exchange` leaves it, and what follows without one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError, reading
from crossmesh.files import read_json
from crossmesh.installation import job_command
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import Tracker

PROOF_FILE = "proof.json"
TAG_PROOF = "crossmesh.proof"
"""On a training run whose adapter was checked: `passed` or `not passed`."""
PROOF_ARTIFACT = f"proof/{PROOF_FILE}"


@dataclass(frozen=True)
class Proof:
    """What is known of an adapter's exchange."""

    passed: bool
    record: Mapping[str, Any]
    """What the check wrote; empty when there is none and going on was forced."""

    @property
    def words(self) -> str:
        """Whether it passed, for a person."""
        return "passed" if self.passed else "none that passed: force=true"


def read_proof(path: str, adapter_digest: str, *, force: bool) -> Proof:
    """Read the proof at `path` of the adapter with `adapter_digest`.

    Raises `InputError` when there is none, or it is of another adapter, or has not passed, unless `force`.
    """
    if not path:
        return _forced({}, "there is no proof", force)
    file = Path(path).expanduser()
    with reading(file, f"the JSON of {job_command('verify')} check=exchange"):
        record = {**read_json(file)}
        proven = str(record["figures"]["digests"]["adapter"])
        passed = record["passed"] is True and record["check"] == "exchange"
    if proven != adapter_digest:
        return _forced(record, f"{file} proves the adapter {proven[:16]}, this one is {adapter_digest[:16]} (SHA-256)", force)
    return Proof(True, record) if passed else _forced(record, f"the proof in {file} has not passed", force)


def proof_of_run(run: TrackedRun | None, open_tracker: Callable[[], Tracker], cache: Path) -> str:
    """Fetch the proof that a training run has into `cache` and return its path; empty when there is none, or no run."""
    if run is None or TAG_PROOF not in run.tags:
        return ""
    folder = cache / "proofs" / run.run_id
    folder.mkdir(parents=True, exist_ok=True)
    return str(open_tracker().download(run.run_id, PROOF_ARTIFACT, folder))


def _forced(record: Mapping[str, Any], reason: str, force: bool) -> Proof:
    if not force:
        raise InputError(
            f"The adapter is not published: {reason}. Run {job_command('verify')} check=exchange for it and give its JSON as proof=, or "
            "publish with force=true, which the model card will say."
        )
    return Proof(False, record)
