import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.config.fingerprint import SCIENCE_FORM
from crossmesh.files import canonical_json
from crossmesh.report.gate.comparable import NO, YES, compare_variants, form_notes, plain_words
from crossmesh.report.variants import RunRecord, Variant


def wrap(*records):
    return [Variant(record.name, "x", record) for record in records]


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
    comparison = compare_variants(results.variants)
    assert (comparison.comparable, comparison.quality, comparison.speed) == (True, True, True)
    assert keys(comparison.differences) == ["system.backend"]
    assert comparison.differences[0].values == {"torch": "torch", "jax": "jax"}


def test_another_loss_scope_rules_out_quality_and_speed(results, changed):
    science = edited(results.variants[1].record.science, "data.loss_scope", "all tokens")
    comparison = compare_variants(changed("jax", science=science).variants)
    assert (comparison.quality, comparison.speed) == (False, False)
    assert keys(comparison.blocking) == ["science.data.loss_scope"]
    assert comparison.blocking[0].values == {"torch": "assistant", "jax": "all tokens"}


@pytest.mark.parametrize("variant", ["base", "jax"])
def test_another_examination_rules_out_quality_but_not_speed(results, changed, variant):
    evaluation = edited(results.variants[0].record.evaluation, "sampling.temperature", 0.8)
    comparison = compare_variants(changed(variant, evaluation=evaluation).variants)
    assert (comparison.quality, comparison.speed, comparison.comparable) == (False, True, False)
    assert comparison.blocking[0].values[variant] == "0.8"


def test_what_was_not_examined_is_missing_and_blocks_nobody(changed):
    comparison = compare_variants(changed("jax", evaluation=None).variants)
    assert comparison.quality
    assert comparison.gates["quality"].classes == (("base", "torch"),)


def test_another_objective_is_another_science_and_named(changed, results):
    science = {**results.variants[1].record.science, "objective": {"name": "z_loss", "coefficient": 0.1}}
    comparison = compare_variants(changed("jax", science=science).variants)
    assert not comparison.comparable
    assert [key for key in keys(comparison.blocking) if key.startswith("science.objective")]


def test_when_nothing_was_examined_quality_rests_on_science(changed, results):
    bare = [RunRecord(v.name, v.record.science, v.record.system, v.record.provenance, None) for v in results.trained]
    assert compare_variants(wrap(*bare)).comparable


def test_other_versions_are_confounders_of_speed_and_no_more(results, changed):
    provenance = edited(results.variants[1].record.provenance, "libraries.jax", "0.11.0")
    comparison = compare_variants(changed("jax", provenance=provenance).variants)
    assert comparison.comparable
    assert keys(comparison.confounders) == ["provenance.libraries.jax"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("host.kernel", "confounder: may explain a difference in speed"),
        ("host.memory_gib", "confounder: may explain a difference in speed"),
        ("libraries.mlflow", "confounder: may explain a difference in speed"),
        ("files.chat_template", "confounder: science has the rows and steps that came of it"),
        ("files.tokenizer", "confounder: science has the rows and steps that came of it"),
        ("settings.data.max_length", "confounder: science has the rows and steps that came of it"),
    ],
)
def test_what_taught_nothing_else_is_named_and_forbids_nothing(results, changed, path, said):
    scope, _, key = path.partition(".")
    provenance = {**results.variants[1].record.provenance, scope: {key: "another"}}
    own = {**results.variants[1].record.provenance, scope: {key: "one"}}
    both = [replace(v, record=replace(v.record, provenance=own if v.name == "torch" else provenance)) for v in results.trained]
    comparison = compare_variants(both)
    assert (keys(comparison.confounders), [one.effect for one in comparison.confounders]) == ([f"provenance.{path}"], [said])
    assert [comparison.gates[aspect].state for aspect in ("quality", "speed")] == [YES, YES]


def of_form(science, form):
    """The record with another number; that of form 1 had none, and other keys."""
    rest = {key: value for key, value in science.items() if key != "form"}
    if form == 1:
        return {**rest, "base": {**rest["base"], "tokenizer": "b" * 64, "chat_template": "c" * 64}}
    return {**rest, "form": form}


@pytest.mark.parametrize(("form", "age"), [(1, "an older"), (SCIENCE_FORM + 1, "a newer")])
def test_a_record_of_another_form_is_named_as_such_and_never_mixed(results, changed, form, age):
    variants = changed("jax", science=of_form(results.variants[1].record.science, form)).variants
    comparison = compare_variants(variants)
    assert keys(comparison.blocking) == ["science.form"]
    assert comparison.blocking[0].values == {"torch": str(SCIENCE_FORM), "jax": f"{form}, recorded by {age} version of crossmesh"}
    assert comparison.blocking[0].effect.startswith("recorded by different versions of crossmesh")
    assert {comparison.gates[aspect].state for aspect in ("quality", "speed")} == {NO}
    assert [one.words for one in comparison.groups] == [
        f"form {SCIENCE_FORM}",
        f"form {form}, recorded by {age} version of crossmesh",
    ]
    (note,) = form_notes(variants)
    assert note.startswith(f"jax: science record of form {form}, recorded by {age} version of crossmesh")


def test_records_of_one_older_form_are_held_against_each_other_and_said_to_be_older(results):
    old = of_form(results.variants[1].record.science, 1)
    variants = [replace(v, record=replace(v.record, science=old)) for v in results.trained]
    assert compare_variants(variants).comparable
    assert form_notes(variants)[0].startswith("torch, jax: science record of form 1, recorded by an older version of crossmesh")
    assert form_notes(results.variants) == ()


def test_the_base_answers_only_for_its_evaluation(changed):
    assert compare_variants(changed("base", provenance={"python": "3.13"}).variants).confounders == ()


def test_steps_say_the_first_one_that_differs(results, changed):
    steps = copy.deepcopy(results.variants[1].record.science["steps"])
    steps[17] = ["x", "y", "z", "w"]
    steps[29] = ["late"]
    comparison = compare_variants(changed("jax", science=edited(results.variants[1].record.science, "steps", steps)).variants)
    assert keys(comparison.blocking) == ["science.steps"]
    assert comparison.blocking[0].values["jax"] == "30 entries, number 18 is x, y, z, w"
    assert "rtl-train-68" in comparison.blocking[0].values["torch"]


def test_a_longer_list_of_steps_says_so(results, changed):
    science = results.variants[1].record.science
    comparison = compare_variants(changed("jax", science=edited(science, "steps", science["steps"][:-1])).variants)
    assert comparison.blocking[0].values == {
        "torch": "30 entries, number 30 is rtl-train-116, rtl-train-117, rtl-train-118, rtl-train-119",
        "jax": "29 entries, number 30 is absent",
    }


def test_modules_are_named_that_only_one_side_trains(results, changed):
    science = results.variants[1].record.science
    comparison = compare_variants(changed("jax", science=edited(science, "lora.modules", science["lora"]["modules"][5:])).variants)
    assert comparison.blocking[0].values["jax"] == "115 entries, none of its own"
    assert comparison.blocking[0].values["torch"].startswith("120 entries, of its own model.layers.0.self_attn.q_proj, ")
    assert comparison.blocking[0].values["torch"].endswith(" and 2 more")


def test_a_missing_key_is_absent_not_none(results, changed):
    science = {key: value for key, value in results.variants[1].record.science.items() if key != "precision"}
    comparison = compare_variants(changed("jax", science=science).variants)
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
    comparison = compare_variants(wrap(*pair))
    assert comparison.quality == (pair[0].fingerprint("science") == pair[1].fingerprint("science"))
    assert comparison.quality == (not comparison.differences)
    assert all(set(difference.values) == {"one", "other"} for difference in comparison.differences)


@given(json_records, json_records)
def test_order_does_not_change_the_keys(one, other):
    pair = [RunRecord("one", science=one), RunRecord("other", science=other)]
    assert keys(compare_variants(wrap(*pair)).differences) == keys(compare_variants(wrap(*pair[::-1])).differences)


@given(json_records)
def test_a_copy_through_json_is_equal(one):
    pair = [RunRecord("one", science=one), RunRecord("other", science=json.loads(canonical_json(one)))]
    assert compare_variants(wrap(*pair)).differences == ()


def test_a_sweep_over_systems_is_one_group_and_over_sciences_several(results):
    torch = results.variants[1]

    def run(name, rank, micro):
        science = {**torch.record.science, "lora": {**torch.record.science["lora"], "rank": rank}}
        return replace(torch, name=name, record=RunRecord(name, science, {"batch_micro": micro}, {}, torch.record.evaluation))

    same = compare_variants([run("a", 8, 1), run("b", 8, 2), run("c", 8, 4)])
    assert [(one.letter, one.names, one.words) for one in same.groups] == [("A", ("a", "b", "c"), "")]
    assert {one.state for one in same.gates.values()} == {"comparable", "nothing to compare"}
    mixed = compare_variants([run("a", 8, 1), run("b", 16, 1), run("c", 16, 2), run("d", 16, 4)])
    assert [(one.letter, one.names, one.words) for one in mixed.groups] == [
        ("A", ("b", "c", "d"), "lora.rank 16"),
        ("B", ("a",), "lora.rank 8"),
    ]
    assert (mixed.gates["speed"].state, mixed.gates["speed"].classes) == ("comparable in groups", (("b", "c", "d"),))
    assert mixed.differences[0].by_value == {"8": ["a"], "16": ["b", "c", "d"]}
    assert compare_variants([run("a", 8, 1), run("b", 16, 1)]).gates["speed"].state == "not comparable"


def test_servers_are_compared_under_one_load_and_name_what_may_explain_a_difference(served):
    like = compare_variants(served(kv_dtype="fp8_e5m2").variants)
    assert like.gates["serving"].state == "comparable"
    assert [one.key for one in like.gates["serving"].confounders] == ["kv_dtype"]
    assert like.gates["serving"].confounders[0].values == {"torch": "bfloat16", "jax": "fp8_e5m2"}
    warm = compare_variants(served(cache="warm").variants)
    assert warm.gates["serving"].state == "not comparable"
    assert [one.effect for one in warm.of("workload")] == ["not the same load: rules out serving"]


def test_prices_of_another_kind_are_a_confounder_of_cost_alone(priced):
    mixed = priced(spot="jax")
    gates = compare_variants(mixed.variants).gates
    assert [one.key for one in gates["cost"].confounders] == ["price"]
    assert gates["speed"].confounders == ()
