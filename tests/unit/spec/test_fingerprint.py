"""Science does not depend on how fast a run is; anything that changes what is learnt changes it."""

from dataclasses import replace

import pytest

from crossmesh.spec.experiment import BackendSpec, BatchSpec, ExperimentSpec, LoraSpec, ModelSpec, OptimSpec, ServeSpec, TrackingSpec
from crossmesh.spec.fingerprint import Record, ScienceFacts, science_record, system_record, trial_identity

FACTS = ScienceFacts("w", "t", "c", "d", ("model.layers.0.self_attn.q_proj",), (("a", "b"), ("c", "d")))
SPEC = ExperimentSpec()


@pytest.mark.parametrize(
    "same",
    [
        replace(SPEC, backend=BackendSpec("jax")),
        replace(SPEC, batch=BatchSpec(micro=1)),
        replace(SPEC, serve=ServeSpec(port=1)),
        replace(SPEC, tracking=TrackingSpec(experiment="x")),
        replace(SPEC, name="other"),
    ],
)
def test_science_ignores_what_only_changes_speed(same):
    assert science_record(same, FACTS).digest == science_record(SPEC, FACTS).digest


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, lora=LoraSpec(rank=8)),
        replace(SPEC, lora=LoraSpec(seed=1)),
        replace(SPEC, optim=OptimSpec(learning_rate=2e-3)),
        replace(SPEC, model=ModelSpec(dtype="bfloat16")),
    ],
)
def test_science_changes_with_what_is_learnt(other):
    assert science_record(other, FACTS).digest != science_record(SPEC, FACTS).digest


@pytest.mark.parametrize("field", ["weights_digest", "tokenizer_digest", "template_digest", "data_digest", "modules", "step_rows"])
def test_science_holds_every_fact(field):
    other = replace(FACTS, **{field: (("c", "d"), ("a", "b")) if field == "step_rows" else ("x",) if field == "modules" else "x"})
    assert science_record(SPEC, other).digest != science_record(SPEC, FACTS).digest


def test_warmup_is_recorded_as_clamped():
    spec = replace(SPEC, optim=OptimSpec(steps=30, warmup_steps=100))
    assert science_record(spec, FACTS).contents["optimizer"]["warmup_steps"] == 3


def test_system_tells_backends_and_micro_batches_apart():
    records = [
        system_record(SPEC),
        system_record(replace(SPEC, backend=BackendSpec("jax"))),
        system_record(replace(SPEC, batch=BatchSpec(micro=1))),
    ]
    assert len({record.digest for record in records}) == 3


def test_identity_needs_both():
    a, b = Record({"x": 1}), Record({"x": 2})
    assert len({trial_identity(a, a), trial_identity(a, b), trial_identity(b, a)}) == 3


def test_digest_is_of_canonical_json():
    assert Record({"b": 1, "a": "é"}).digest == Record({"a": "é", "b": 1}).digest
    # sha256 of {"a":1}
    assert Record({"a": 1}).digest == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"
