"""Science does not depend on how fast a run is; anything that changes what is learned changes it."""

from dataclasses import replace

import pytest

from crossmesh.config import fingerprint
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import (
    SCIENCE_FORM,
    Record,
    ScienceFacts,
    digest_of,
    digest_of_parts,
    form_of,
    science_record,
    settings_digest,
    system_record,
    trial_identity,
)
from crossmesh.config.services import TrackingSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import (
    BackendSpec,
    BatchSpec,
    CheckpointSpec,
    DataSpec,
    HardwareSpec,
    LoraSpec,
    ModelSpec,
    OptimSpec,
    PackingSpec,
    RetrySpec,
)
from crossmesh.files import canonical_json

FACTS = ScienceFacts("w", "d", {"modules": ["model.layers.0.self_attn.q_proj"], "rank": 16}, (("a", "b"), ("c", "d")))
SPEC = ExperimentSpec()


@pytest.mark.parametrize(
    "same",
    [
        replace(SPEC, backend=BackendSpec("jax")),
        replace(SPEC, batch=BatchSpec(micro=1)),
        replace(SPEC, backend=BackendSpec(remat="layer", attention="plain")),
        replace(SPEC, packing=PackingSpec("step", length=512)),
        replace(SPEC, packing=PackingSpec("stream", window=64)),  # The steps say which rows share one.
        replace(SPEC, data=DataSpec(max_length=1900)),  # The data's digest says which rows it drops.
        replace(SPEC, data=DataSpec(seed=1)),  # The steps are its order.
        replace(SPEC, checkpoint=CheckpointSpec(every_steps=3, target="gs://bucket")),
        replace(SPEC, retry=RetrySpec(failures=0)),
        replace(SPEC, serve=ServeSpec(port=1)),
        replace(SPEC, tracking=TrackingSpec(experiment="x")),
        replace(SPEC, name="other"),
        replace(SPEC, optim=OptimSpec(stop_at=10)),  # The rows of the steps say where they end.
    ],
)
def test_science_ignores_what_only_changes_speed(same):
    assert science_record(same, FACTS).digest == science_record(SPEC, FACTS).digest


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, lora=LoraSpec(seed=1)),
        replace(SPEC, lora=LoraSpec(dropout=0.1)),
        replace(SPEC, optim=OptimSpec(learning_rate=2e-3)),
        replace(SPEC, lora=LoraSpec(rank=0)),
        replace(SPEC, model=ModelSpec(dtype="bfloat16")),
        replace(SPEC, model=ModelSpec(quantization="nf4")),
    ],
)
def test_science_changes_with_what_is_learnt(other):
    assert science_record(other, FACTS).digest != science_record(SPEC, FACTS).digest


def test_how_dropout_chooses_is_science_where_there_is_dropout(monkeypatch):
    dropped = replace(SPEC, lora=LoraSpec(dropout=0.1))
    before = science_record(dropped, FACTS).digest, science_record(SPEC, FACTS).digest
    monkeypatch.setattr(fingerprint, "LORA_MASKS", "another choice")
    assert science_record(dropped, FACTS).digest != before[0]
    assert science_record(SPEC, FACTS).digest == before[1]


def test_how_four_bit_weights_are_rounded_is_science_where_there_are_any(monkeypatch):
    packed = replace(SPEC, model=ModelSpec(quantization="nf4"))
    before = science_record(packed, FACTS), science_record(SPEC, FACTS).digest
    assert before[0].contents["precision"]["base"] == {"values": "nf4", "block": 64, "along": "input", "scale": "absmax float32"}
    monkeypatch.setattr(fingerprint, "NF4_BLOCK", 128)
    assert science_record(packed, FACTS).digest != before[0].digest
    assert science_record(SPEC, FACTS).digest == before[1]


FACTS_NAMED = ("weights_digest", "data_digest", "lora", "step_rows", "resumed_from")


@pytest.mark.parametrize("field", FACTS_NAMED)
def test_science_holds_every_fact(field):
    others = {"step_rows": (("c", "d"), ("a", "b")), "lora": {**FACTS.lora, "rank": 8}}
    other = replace(FACTS, **{field: others.get(field, "x")})
    assert science_record(SPEC, other).digest != science_record(SPEC, FACTS).digest


def test_warmup_is_recorded_as_clamped():
    spec = replace(SPEC, optim=OptimSpec(steps=30, warmup_steps=100))
    assert science_record(spec, FACTS).contents["optimizer"]["warmup_steps"] == 3


def test_science_says_its_form_and_a_record_without_one_is_of_the_first():
    science = science_record(SPEC, FACTS).contents
    assert (science["form"], form_of(science), form_of({"base": {}})) == (SCIENCE_FORM, SCIENCE_FORM, 1)


def test_settings_are_a_science_without_its_steps_and_its_past():
    own = settings_digest(science_record(SPEC, FACTS).contents)
    later = replace(FACTS, step_rows=(*FACTS.step_rows, ("e", "f")), resumed_from="x")
    assert settings_digest(science_record(SPEC, later).contents) == own
    assert settings_digest(science_record(replace(SPEC, optim=OptimSpec(learning_rate=2e-3)), FACTS).contents) != own
    assert settings_digest(science_record(SPEC, replace(FACTS, data_digest="x")).contents) != own


def test_files_that_a_whole_model_has_of_its_base_make_another_trial_and_no_other_science():
    full = replace(SPEC, lora=LoraSpec(rank=0))
    digests = [{"chat_template": "c", "tokenizer": name} for name in ("t", "u")]
    assert len({system_record(full, files).digest for files in digests}) == 2
    assert len({system_record(SPEC, files).digest for files in digests}) == 1


def test_what_an_adapter_has_does_not_count_where_all_weights_are_trained():
    full = replace(SPEC, lora=LoraSpec(rank=0))
    assert science_record(full, FACTS).contents["trained"] == "full"
    other = replace(SPEC, lora=LoraSpec(rank=0, alpha=1.0, targets=("q",), seed=3))
    assert science_record(other, FACTS).digest == science_record(full, FACTS).digest


def test_system_tells_apart_what_changes_speed():
    specs = [
        SPEC,
        replace(SPEC, backend=BackendSpec("jax")),
        replace(SPEC, backend=BackendSpec(remat="layer")),
        replace(SPEC, backend=BackendSpec(compile="layer")),
        replace(SPEC, backend=BackendSpec(attention="plain")),
        replace(SPEC, batch=BatchSpec(micro=1)),
        replace(SPEC, packing=PackingSpec("step")),
        replace(SPEC, packing=PackingSpec("step", length=512)),
        replace(SPEC, hardware=HardwareSpec(cpu_devices=2)),
    ]
    assert len({system_record(spec).digest for spec in specs}) == len(specs)


def test_identity_needs_both():
    a, b = Record({"x": 1}), Record({"x": 2})
    assert len({trial_identity(a, a), trial_identity(a, b), trial_identity(b, a)}) == 3


def test_digest_is_of_canonical_json():
    assert Record({"b": 1, "a": "é"}).digest == Record({"a": "é", "b": 1}).digest
    # sha256 of {"a":1}
    assert Record({"a": 1}).digest == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_the_digest_of_parts_is_that_of_the_whole():
    whole = {"steps": [["b", "a"]], "base": {"weights": "ü", "n": 1.0}, "x": None, "form": 2}
    assert digest_of_parts({key: canonical_json(value) for key, value in whole.items()}) == digest_of(whole)
    assert digest_of_parts({}) == digest_of({})
