"""A run that contradicts itself is refused, by name and by what disagrees."""

import json
from dataclasses import asdict, replace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import Record, ScienceFacts, digest_of, science_record, system_record, trained_record, trial_identity
from crossmesh.errors import InputError
from crossmesh.report.gate.comparable import NO, compare_variants, unproven_notes
from crossmesh.report.gate.integrity import (
    beside_weights,
    check_contents,
    check_examined,
    check_identity,
    check_settings,
    check_spec,
    check_trained,
    science_settings,
    system_settings,
    unproven,
)
from crossmesh.report.variants import RunRecord
from crossmesh.track.flatten import PARAM_LIMIT, flatten, split_long
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
from crossmesh.trial.trial_log import params_of

SCIENCE = Record({"optimizer": {"learning_rate": 2e-4, "steps": 30, "warmup_steps": 3}})
SYSTEM = Record({"backend": "torch"})
OTHER = Record({"optimizer": {"learning_rate": 1e-4, "steps": 30, "warmup_steps": 3}})
BESIDE = trained_record(SCIENCE, SYSTEM, "adapter")
RECORD = {"task": "rtl", "judge": {"code": "a"}, "engine": {"dtype": "float32"}}
RUN = TrackedRun(
    "r" * 32,
    "torch",
    "FINISHED",
    tags={
        TAG_SCIENCE: SCIENCE.digest,
        TAG_SYSTEM: SYSTEM.digest,
        TAG_PROVENANCE: Record({"python": "3.11"}).digest,
        TAG_EVALUATION: Record(RECORD).digest,
        TAG_IDENTITY: trial_identity(SCIENCE, SYSTEM),
        TAG_TRAINED: digest_of(BESIDE),
        TAG_ADAPTER: "adapter",
    },
    params={"optim.learning_rate": "0.0002", "optim.steps": "30", "optim.warmup_steps": "100"},
)


def tagged(**tags):
    names = {"science": TAG_SCIENCE, "system": TAG_SYSTEM, "identity": TAG_IDENTITY}
    return replace(RUN, tags={**RUN.tags, **{names[key]: value for key, value in tags.items()}})


def test_a_run_as_it_was_made_passes():
    for scope, contents in (
        ("science", SCIENCE.contents),
        ("system", SYSTEM.contents),
        ("provenance", {"python": "3.11"}),
        ("evaluation", RECORD),
    ):
        check_contents(RUN, scope, contents)
    check_identity(RUN)
    check_settings(RUN, "records/science.json", science_settings(SCIENCE.contents))
    assert check_trained(RUN, BESIDE)
    check_examined(RUN, RECORD, {"comparable_on": {"task": "rtl", "judge": {"code": "a"}}})


@pytest.mark.parametrize("scope", ["science", "system", "provenance", "evaluation"])
def test_contents_that_were_edited_are_refused(scope):
    with pytest.raises(InputError, match=rf"run r{{32}} \(torch\) contradicts itself: records/{scope}\.json has the digest"):
        check_contents(RUN, scope, {"edited": True})


def test_a_tag_that_was_edited_is_refused():
    with pytest.raises(InputError, match=r"crossmesh\.science says"):
        check_contents(tagged(science=OTHER.digest), "science", SCIENCE.contents)
    # The tag and the contents together: the identity is of another science.
    both = tagged(science=OTHER.digest)
    check_contents(both, "science", OTHER.contents)
    with pytest.raises(InputError, match=r"crossmesh\.identity"):
        check_identity(both)
    # All three: what lies beside the adapter still says it, and so do the parameters, which MLflow does not change.
    three = tagged(science=OTHER.digest, identity=trial_identity(OTHER, SYSTEM))
    check_identity(three)
    with pytest.raises(InputError, match=r"beside its weights has the science"):
        check_trained(three, BESIDE)
    with pytest.raises(InputError, match=r"science\.json means optim\.learning_rate=0\.0001, and its parameter optim\.learning_rate is 0"):
        check_settings(three, "records/science.json", science_settings(OTHER.contents))


def test_a_result_that_was_examined_otherwise_than_its_record_says_is_refused():
    with pytest.raises(InputError, match=r"records/evaluation\.json and result\.json differ in judge"):
        check_examined(RUN, RECORD, {"comparable_on": {"task": "rtl", "judge": {"code": "b"}}})


def test_an_older_run_without_a_tag_is_not_accused():
    check_contents(replace(RUN, tags={}), "evaluation", RECORD)
    check_identity(replace(RUN, tags={}))


def without(*tags):
    return replace(RUN, tags={key: value for key, value in RUN.tags.items() if key not in tags})


@pytest.mark.parametrize(
    ("run", "beside", "said"),
    [
        (RUN, None, "the record beside its weights is gone, and its tag crossmesh.trained says that there is one"),
        (without(TAG_TRAINED), BESIDE, "a record lies beside its weights, and its tag crossmesh.trained is gone"),
        (without(TAG_TRAINED), {}, "a record lies beside its weights, and its tag crossmesh.trained is gone"),
        (RUN, {}, "has the science None"),
        (RUN, trained_record(OTHER, SYSTEM, "adapter"), "has the science"),
        (RUN, trained_record(SCIENCE, OTHER, "adapter"), "has the system"),
        (
            RUN,
            trained_record(SCIENCE, SYSTEM, "another"),
            "is of weights with the digest another, and its tag crossmesh.adapter says adapter",
        ),
        (without(TAG_ADAPTER), trained_record(SCIENCE, SYSTEM, "another"), "and its tag crossmesh.trained says"),  # A whole model.
    ],
)
def test_the_record_beside_the_weights_is_held_against_the_run(run, beside, said):
    with pytest.raises(InputError, match=said):
        check_trained(run, beside)


def test_the_record_lies_beside_what_was_trained():
    assert beside_weights({"trained": "full"}) == "model/crossmesh_records.json"
    assert beside_weights({"trained": "lora"}) == beside_weights({}) == "adapter/crossmesh_records.json"


def test_a_run_whose_tag_and_record_are_both_gone_is_comparable_with_none(results):
    assert not check_trained(without(TAG_TRAINED, TAG_ADAPTER), None)
    torch, jax = results.trained

    def stripped(one):
        return replace(one, record=replace(one.record, science=unproven(one.run_id, one.record.science)))

    for runs in ((torch, stripped(jax)), (stripped(torch), stripped(jax))):
        found = compare_variants(runs)
        assert {found.gates[aspect].state for aspect in ("quality", "speed", "cost")} <= {NO, "nothing to compare"}
        assert not found.comparable
        (difference,) = found.blocking
        assert (difference.scope, difference.key) == ("science", "record_beside_weights")
        assert difference.effect.startswith("no record beside the weights proves what was learnt")
        (note,) = unproven_notes(runs)
        assert note.startswith(", ".join(one.name for one in runs if one.record.science != torch.record.science) + ": without a record")
    assert unproven_notes((torch, jax)) == ()
    assert isinstance(torch.record, RunRecord)


SPEC = ExperimentSpec()
PARAMS = flatten(params_of(SPEC))
WHOLE = replace(RUN, params=PARAMS)
FACTS = ScienceFacts("w" * 64, "d" * 64, {"rank": 16}, (("a",),))


def test_records_mean_the_parameters_that_the_run_has():
    for scope, settings in (
        ("science", science_settings(science_record(SPEC, FACTS).contents)),
        ("system", system_settings(system_record(SPEC).contents)),
    ):
        check_settings(WHOLE, scope, settings)
        assert settings.keys() <= PARAMS.keys() | {"optim.name", "optim.schedule"}, scope


@pytest.mark.parametrize(
    ("scope", "path", "value", "said"),
    [
        ("science", "optimizer.beta1", 0.5, "optim.beta1=0.5"),
        ("science", "lora.dropout", 0.5, "lora.dropout=0.5"),
        ("science", "lora.seed", 7, "lora.seed=7"),
        ("science", "precision.compute", "bfloat16", "model.dtype=bfloat16"),
        ("science", "precision.base", {"values": "nf4"}, "model.quantization=nf4"),
        ("system", "hardware", "tpu_v5p_8", "hardware.name=tpu_v5p_8"),
        ("system", "mesh.tp", 2, "mesh_shape.tp=2"),
        ("system", "batch_micro", 99, "micro_batch=99"),
        ("system", "attention", "flash", "attention=flash"),
        ("system", "remat", "layer", "backend.remat=layer"),
        ("system", "packing.mode", "stream", "packing.mode=stream"),
    ],
)
def test_a_record_that_was_edited_with_its_tags_contradicts_the_parameters(scope, path, value, said):
    contents = {"science": science_record(SPEC, FACTS), "system": system_record(SPEC)}[scope].contents
    *parents, last = path.split(".")
    inner = contents
    for key in parents:
        inner = inner[key]
    assert inner[last] != value
    inner[last] = value
    with pytest.raises(InputError, match=rf"records/{scope}\.json means {said}, and its parameter"):
        check_settings(WHOLE, f"records/{scope}.json", {"science": science_settings, "system": system_settings}[scope](contents))


def test_a_kept_spec_that_was_edited_is_refused():
    kept = json.loads(json.dumps(asdict(SPEC)))
    check_spec(WHOLE, kept)
    kept["data"]["max_rows"] = 7
    with pytest.raises(InputError, match=r"records/spec\.json has data\.max_rows=7, and its parameter data\.max_rows is "):
        check_spec(WHOLE, kept)


def test_a_long_value_of_a_spec_may_be_kept_whole_or_as_an_artifact():
    kept, long = json.loads(json.dumps(asdict(SPEC))), "x" * (PARAM_LIMIT + 1)
    kept["eval"]["path"], key = long, "eval.path"
    short, _ = split_long({key: long}, PARAM_LIMIT, "params")
    for value in (long, short[key]):
        check_spec(replace(WHOLE, params={**PARAMS, key: value}), kept)
    with pytest.raises(InputError, match=r"records/spec\.json has eval\..*=artifact params/eval\."):
        check_spec(replace(WHOLE, params={**PARAMS, key: long + "y"}), kept)
