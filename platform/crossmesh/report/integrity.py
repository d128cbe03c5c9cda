"""Whether what a run says of itself agrees: contents of records, their digests in tags, the run's identity and its adapter's own record.

Pure. A run that contradicts itself was edited, or damaged; it is refused, never guessed at.
"""

from collections.abc import Mapping
from typing import Any

from crossmesh.errors import InputError
from crossmesh.files import canonical_json
from crossmesh.spec.fingerprint import digest_of, identity_of_digests
from crossmesh.track.tracker import TAG_EVALUATION, TAG_IDENTITY, TAG_PROVENANCE, TAG_SCIENCE, TAG_SYSTEM, TAG_TRAINED, TrackedRun

_TAGS = {"science": TAG_SCIENCE, "system": TAG_SYSTEM, "provenance": TAG_PROVENANCE, "evaluation": TAG_EVALUATION}
_SHORT = 12


def check_contents(run: TrackedRun, scope: str, contents: Mapping[str, Any]) -> None:
    """Raise `InputError` unless the record of `scope` has the digest that the run's tag says. A run without the tag is an older one."""
    said, found = run.tags.get(_TAGS[scope]), digest_of(contents)
    if said is not None and said != found:
        raise _contradiction(
            run, f"records/{scope}.json has the digest {found[:_SHORT]}, and its tag {_TAGS[scope]} says {said[:_SHORT]}", scope
        )


def check_identity(run: TrackedRun) -> None:
    """Raise `InputError` unless the run's identity is that of its science and system."""
    science, system, identity = (run.tags.get(tag) for tag in (TAG_SCIENCE, TAG_SYSTEM, TAG_IDENTITY))
    if science and system and identity and identity != identity_of_digests(science, system):
        raise _contradiction(
            run, f"its tag {TAG_IDENTITY} ({identity[:_SHORT]}) is of another science or system than {TAG_SCIENCE} and {TAG_SYSTEM} say"
        )


def check_trained(run: TrackedRun, beside: Mapping[str, Any] | None) -> None:
    """Raise `InputError` unless what lies beside the adapter (`trained_record`) is what was written, and names the run's own fingerprints.

    None: nothing lies there, as with an older run; the tag of one that was made with a record says that it is gone.
    """
    written = run.tags.get(TAG_TRAINED)
    if beside is None:
        if written is not None:
            raise _contradiction(run, f"the record beside its adapter is gone, and its tag {TAG_TRAINED} says that there is one")
        return
    for scope in ("science", "system"):
        said, own = run.tags.get(_TAGS[scope]), beside.get(scope)
        if said is not None and own != said:
            raise _contradiction(
                run, f"the record beside its adapter has the {scope} {str(own)[:_SHORT]}, and its tag {_TAGS[scope]} says {said[:_SHORT]}"
            )
    if written is not None and digest_of(beside) != written:
        raise _contradiction(
            run,
            f"the record beside its adapter has the digest {digest_of(beside)[:_SHORT]}, and its tag {TAG_TRAINED} says {written[:_SHORT]}",
        )


def check_optimizer(run: TrackedRun, science: Mapping[str, Any]) -> None:
    """Raise `InputError` where the science record names other settings of the optimizer than the run's parameters."""
    for key, value in science.get("optimizer", {}).items():
        said = run.params.get(f"optim.{key}")
        if said is None or key == "warmup_steps":  # The record has it as clamped.
            continue
        as_number = type(value) in (int, float) and said == repr(value)  # As JSON has it, without the price of asking ten thousand times.
        if not as_number and said != canonical_json(value):
            raise _contradiction(run, f"records/science.json has optimizer.{key}={value}, and its parameter optim.{key} is {said}")


def check_examined(run: TrackedRun, record: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Raise `InputError` unless the record of an evaluation says what its result says of how it was examined."""
    said = {key: value for key, value in record.items() if key != "engine"}
    if digest_of(said) != digest_of(result["comparable_on"]):
        keys = sorted(key for key in {*said, *result["comparable_on"]} if said.get(key) != result["comparable_on"].get(key))
        raise _contradiction(run, f"records/evaluation.json and result.json differ in {', '.join(keys)}")


def _contradiction(run: TrackedRun, what: str, scope: str = "") -> InputError:
    again = "evaluate" if scope == "evaluation" else "train"
    return InputError(
        f"The MLflow run {run.run_id} ({run.name}) contradicts itself: {what}. It was edited or damaged after it was made, and enters no "
        f"comparison. Leave it out, or {again} again with force=true."
    )
