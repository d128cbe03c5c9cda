"""Whether what a run says of itself agrees: its records, their digests in tags, its identity, parameters and the record beside its weights.

Pure. A run that contradicts itself was edited, or damaged; it is refused, never guessed at.
"""

import json
from collections.abc import Mapping
from typing import Any

from crossmesh.config.fingerprint import TRAINED_RECORD, WITHOUT_RECORD, digest_of, identity_of_digests
from crossmesh.errors import InputError
from crossmesh.track.flatten import PARAM_LIMIT, flatten, split_long
from crossmesh.track.masking import MASK
from crossmesh.track.tracked_run import (
    TAG_ADAPTER,
    TAG_EVALUATION,
    TAG_IDENTITY,
    TAG_PROVENANCE,
    TAG_SCIENCE,
    TAG_SYSTEM,
    TAG_TRAINED,
    TrackedRun,
)

_TAGS = {"science": TAG_SCIENCE, "system": TAG_SYSTEM, "provenance": TAG_PROVENANCE, "evaluation": TAG_EVALUATION}
_SHORT = 12


def check_contents(run: TrackedRun, scope: str, contents: Mapping[str, Any]) -> None:
    """Raise `InputError` unless the record of `scope` has the digest that the run's tag says. A run without the tag is an older one."""
    check_digest(run, scope, digest_of(contents))


def check_digest(run: TrackedRun, scope: str, found: str) -> None:
    """The same of a digest that is known already."""
    said = run.tags.get(_TAGS[scope])
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


def check_trained(run: TrackedRun, beside: Mapping[str, Any] | None) -> bool:
    """Whether a record beside the weights (`trained_record`) proves the run's fingerprints.

    Raises `InputError` where one of tag and record is gone, or where the record is not what was written or names other fingerprints.

    Args:
        run: a training.
        beside: the record beside its adapter, or beside the whole model; None: nothing lies there.
    """
    written = run.tags.get(TAG_TRAINED)
    if beside is None and written is None:
        return False
    if beside is None or written is None:
        gone = "the record beside its weights is gone, and" if beside is None else "a record lies beside its weights, and"
        says = "says that there is one" if beside is None else "is gone"
        raise _contradiction(run, f"{gone} its tag {TAG_TRAINED} {says}")
    for scope in ("science", "system"):
        said, own = run.tags.get(_TAGS[scope]), beside.get(scope)
        if said is not None and own != said:
            raise _contradiction(
                run, f"the record beside its weights has the {scope} {str(own)[:_SHORT]}, and its tag {_TAGS[scope]} says {said[:_SHORT]}"
            )
    adapter = run.tags.get(TAG_ADAPTER)
    if adapter is not None and beside.get("trained") != adapter:
        raise _contradiction(
            run,
            f"the record beside its weights is of weights with the digest {str(beside.get('trained'))[:_SHORT]}, and its tag {TAG_ADAPTER} "
            f"says {adapter[:_SHORT]}",
        )
    if (found := digest_of(beside)) != written:
        raise _contradiction(
            run, f"the record beside its weights has the digest {found[:_SHORT]}, and its tag {TAG_TRAINED} says {written[:_SHORT]}"
        )
    return True


def beside_weights(science: Mapping[str, Any]) -> str:
    """Where a run has the record beside its weights among its artifacts."""
    return f"{'model' if science.get('trained') == 'full' else 'adapter'}/{TRAINED_RECORD}"


def unproven(run_id: str, science: Mapping[str, Any]) -> dict[str, Any]:
    """The science of a run without a record beside its weights: nothing proves it, so it is that of no other run."""
    return {**science, WITHOUT_RECORD: f"none: {run_id}"}


def science_settings(science: Mapping[str, Any]) -> dict[str, str]:
    """What a run's parameters must be by its science record, by name, as they are tracked. `warmup_steps` is clamped in the record."""
    found = {f"optim.{key}": value for key, value in science.get("optimizer", {}).items() if key != "warmup_steps"}
    lora, precision = science.get("lora", {}), science.get("precision", {})
    found |= {f"lora.{key}": lora[key] for key in ("dropout", "seed") if key in lora}
    if "compute" in precision:
        found["model.dtype"] = precision["compute"]
    if "base" in precision:
        base = precision["base"]
        found["model.quantization"] = base.get("values") if isinstance(base, dict) else "none"
    return _texts(found)


def system_settings(system: Mapping[str, Any]) -> dict[str, str]:
    """The same of its system record."""
    names = {"hardware": "hardware.name", "batch_micro": "micro_batch", "remat": "backend.remat", "attention": "attention"}
    found = {name: system[key] for key, name in names.items() if key in system}
    found |= {f"mesh_shape.{axis}": size for axis, size in system.get("mesh", {}).items()}
    if "mode" in system.get("packing", {}):
        found["packing.mode"] = system["packing"]["mode"]
    if system.get("backend", "torch") == "torch":
        found["backend.compile"] = system.get("compile", "none")
    return _texts(found)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as `flatten` makes parameters of them; none of these is a secret."""
    return {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def check_settings(run: TrackedRun, file: str, settings: Mapping[str, str]) -> None:
    """Raise `InputError` where a record (`file`) means other settings than the run's parameters, which a tracker does not change.

    Args:
        run: a training.
        file: the artifact that has the record.
        settings: what the parameters must be; those that the run does not have are not asked.
    """
    for key, value in settings.items():
        said = run.params.get(key)
        if said is not None and said != value:
            raise _contradiction(run, f"{file} means {key}={value}, and its parameter {key} is {said}")


def check_spec(run: TrackedRun, spec: Mapping[str, Any]) -> None:
    """Raise `InputError` where the kept spec has another value of a key than the run's parameters."""
    whole = flatten(spec)
    short, _ = split_long(whole, PARAM_LIMIT, "params")
    for key, value in whole.items():
        own = run.params.get(key)
        if own is not None and MASK not in value and own not in (value, short[key]):  # Not every tracker shortens what is long.
            raise _contradiction(run, f"records/spec.json has {key}={short[key]}, and its parameter {key} is {own}")


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
