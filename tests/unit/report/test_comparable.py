import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.files import canonical_json
from crossmesh.report.comparable import compare, plain_words
from crossmesh.report.variants import RunRecord


def records(results):
    return [variant.record for variant in results.variants]


def edited(value, path, new):
    value = copy.deepcopy(dict(value))
    inner = value
    *parents, last = path.split(".")
    for key in parents:
        inner = inner[key]
    inner[last] = new
    return value


def keys(differences):
    return [f"{one.scope}.{one.key}" for one in differences]


def test_two_backends_of_one_experiment_differ_in_the_backend_only(results):
    comparison = compare(records(results))
    assert (comparison.comparable, comparison.quality, comparison.speed) == (True, True, True)
    assert keys(comparison.differences) == ["system.backend"]
    assert comparison.differences[0].values == {"torch": "torch", "jax": "jax"}


def test_another_loss_scope_rules_out_quality_and_speed(results, changed):
    science = edited(results.variants[1].record.science, "data.loss_scope", "all tokens")
    comparison = compare(records(changed("jax", science=science)))
    assert (comparison.quality, comparison.speed) == (False, False)
    assert keys(comparison.blocking) == ["science.data.loss_scope"]
    assert comparison.blocking[0].values == {"torch": "assistant", "jax": "all tokens"}


@pytest.mark.parametrize("variant", ["base", "jax"])
def test_another_examination_rules_out_quality_but_not_speed(results, changed, variant):
    evaluation = edited(results.variants[0].record.evaluation, "sampling.temperature", 0.8)
    comparison = compare(records(changed(variant, evaluation=evaluation)))
    assert (comparison.quality, comparison.speed, comparison.comparable) == (False, True, False)
    assert comparison.blocking[0].values[variant] == "0.8"


def test_a_variant_that_was_not_examined_is_not_comparable_in_quality(changed):
    comparison = compare(records(changed("jax", evaluation=None)))
    assert not comparison.quality
    assert comparison.blocking[0].values["jax"] == "none"


def test_when_nothing_was_examined_quality_rests_on_science(changed, results):
    bare = [RunRecord(v.name, v.record.science, v.record.system, v.record.provenance, None) for v in results.trained]
    assert compare(bare).comparable


def test_other_versions_are_confounders_of_speed_and_no_more(results, changed):
    provenance = edited(results.variants[1].record.provenance, "libraries.jax", "0.11.0")
    comparison = compare(records(changed("jax", provenance=provenance)))
    assert comparison.comparable
    assert keys(comparison.confounders) == ["provenance.libraries.jax"]


def test_the_base_answers_only_for_its_evaluation(changed):
    assert compare(records(changed("base", provenance={"python": "3.13"}))).confounders == ()


def test_steps_say_the_first_one_that_differs(results, changed):
    steps = copy.deepcopy(results.variants[1].record.science["steps"])
    steps[17] = ["x", "y", "z", "w"]
    steps[29] = ["late"]
    comparison = compare(records(changed("jax", science=edited(results.variants[1].record.science, "steps", steps))))
    assert keys(comparison.blocking) == ["science.steps"]
    assert comparison.blocking[0].values["jax"] == "30 entries, number 18 is x, y, z, w"
    assert "rtl-train-68" in comparison.blocking[0].values["torch"]


def test_a_longer_list_of_steps_says_so(results, changed):
    science = results.variants[1].record.science
    comparison = compare(records(changed("jax", science=edited(science, "steps", science["steps"][:-1]))))
    assert comparison.blocking[0].values == {
        "torch": "30 entries, number 30 is rtl-train-116, rtl-train-117, rtl-train-118, rtl-train-119",
        "jax": "29 entries, number 30 is absent",
    }


def test_modules_are_named_that_only_one_side_trains(results, changed):
    science = results.variants[1].record.science
    comparison = compare(records(changed("jax", science=edited(science, "lora.modules", science["lora"]["modules"][5:]))))
    assert comparison.blocking[0].values["jax"] == "115 entries, none of its own"
    assert comparison.blocking[0].values["torch"].startswith("120 entries, of its own model.layers.0.self_attn.q_proj, ")
    assert comparison.blocking[0].values["torch"].endswith(" and 2 more")


def test_a_missing_key_is_absent_not_none(results, changed):
    science = {key: value for key, value in results.variants[1].record.science.items() if key != "precision"}
    comparison = compare(records(changed("jax", science=science)))
    assert comparison.blocking[0].values["jax"] == "absent"


def test_values_in_plain_words():
    assert plain_words(True) == "yes"
    assert plain_words(None) == "none"
    assert plain_words("0123456789abcdef" * 4) == "0123456789ab…"
    assert plain_words([]) == "empty"
    assert plain_words("x" * 500).endswith("… (500 characters)")
    assert len(plain_words("x" * 500)) <= 120


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 0.5]) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pqr"), inner, max_size=3),
    max_leaves=8,
)
json_records = st.dictionaries(st.sampled_from("xyz"), json_values, max_size=3)


@given(json_records, json_records)
def test_the_gate_opens_exactly_when_fingerprints_agree(one, other):
    pair = [RunRecord("one", science=one, system={}), RunRecord("other", science=other, system={})]
    comparison = compare(pair)
    assert comparison.quality == (pair[0].fingerprint("science") == pair[1].fingerprint("science"))
    assert comparison.quality == (not comparison.differences)
    assert all(set(difference.values) == {"one", "other"} for difference in comparison.differences)


@given(json_records, json_records)
def test_order_does_not_change_the_keys(one, other):
    pair = [RunRecord("one", science=one), RunRecord("other", science=other)]
    assert keys(compare(pair).differences) == keys(compare(pair[::-1]).differences)


@given(json_records)
def test_a_copy_through_json_is_equal(one):
    pair = [RunRecord("one", science=one), RunRecord("other", science=json.loads(canonical_json(one)))]
    assert compare(pair).differences == ()
