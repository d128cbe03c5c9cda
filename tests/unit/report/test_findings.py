from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.report.findings import Gap, better, faster, findings, gap, headline, loss_gaps, small
from crossmesh.report.variants import Score
from crossmesh.report.write import compare_results


def score(value, low, high):
    return Score("heldout", 1, value, low, high, 0.95, "wilson", 100)


def with_score(results, name, value, low, high):
    variants = tuple(replace(v, scores=(score(value, low, high),)) if v.name == name else v for v in results.variants)
    return replace(results, variants=variants)


def test_gap_is_newcombes_interval():
    """Worked example of Newcombe 1998 (table II, case a): 56/70 against 48/80, method 10: 0.0524 to 0.3339."""
    first, second = score(56 / 70, 0.6917, 0.8769), score(48 / 80, 0.4903, 0.7004)
    found = gap(first, second)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.0524, abs=1e-3), pytest.approx(0.3339, abs=1e-3))


@given(st.tuples(*[st.floats(0, 1)] * 6))
def test_swapping_the_two_mirrors_the_gap(numbers):
    a, b = sorted(numbers[:3]), sorted(numbers[3:])
    one, other = score(a[1], a[0], a[2]), score(b[1], b[0], b[2])
    there, back = gap(one, other), gap(other, one)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert there.low <= there.value + 1e-12
    assert there.value <= there.high + 1e-12


def test_a_gap_counts_only_when_its_interval_leaves_zero_out():
    assert not Gap(0.1, -0.01, 0.2).shown
    assert Gap(0.1, 0.01, 0.2).shown
    assert Gap(-0.1, -0.2, -0.01).shown


def test_like_backends_are_not_ranked_and_beat_the_base(results):
    found = better(results, compare_results(results))
    assert found.answer == "No difference shown; both beat base"
    assert found.tone == "good"
    assert "jax against torch: +2.1 points (-17.0 to +21.0)." in found.reasons


def test_a_clear_winner_is_named_with_its_margin(results):
    apart = with_score(results, "jax", 0.9, 0.83, 0.95)
    assert better(apart, compare_results(apart)).answer == "jax, by 31.7 points"


def test_not_beating_the_base_is_bad_news(results):
    weak = with_score(results, "torch", 0.06, 0.02, 0.15)
    found = better(weak, compare_results(weak))
    assert found.tone == "bad"
    assert found.answer == "jax, by 54.4 points"


def test_nothing_is_ranked_across_other_science(changed, results):
    mixed = changed("jax", science={**results.variants[1].record.science, "packing": "yes"})
    comparison = compare_results(mixed)
    answers = [finding.answer for finding in findings(mixed, comparison)]
    assert answers == ["No, not comparable", "Not compared", "Not compared"]
    assert headline(comparison) == "Not comparable, neither in quality nor in speed: 1 key differs."


def test_speed_stays_comparable_when_only_the_examination_differs(changed, results):
    mixed = changed("jax", evaluation={**results.variants[1].record.evaluation, "dtype": "bfloat16"})
    comparison = compare_results(mixed)
    answers = [finding.answer for finding in findings(mixed, comparison)]
    assert answers == ["In speed only", "Not compared", "torch, by 1.74x"]
    assert headline(comparison) == "Not comparable in quality, only in speed: 1 key differs."


def test_confounders_stand_beside_a_speed_that_is_claimed(changed):
    mixed = changed("jax", provenance={"python": "3.12.0"})
    comparison = compare_results(mixed)
    assert any("provenance" not in reason and "python" in reason for reason in faster(mixed, comparison).reasons)
    assert "confounders of speed" in headline(comparison)


def test_one_trained_variant_is_compared_with_the_base(results):
    alone = replace(results, variants=results.variants[:2])
    found = better(alone, compare_results(alone))
    assert found.answer == "torch, by 54.2 points"


def test_a_base_alone_is_no_comparison(results):
    alone = replace(results, variants=results.variants[:1])
    assert [f.answer for f in findings(alone, compare_results(alone))] == ["Yes, comparable", "Not measured", "Not measured"]


def test_gaps_cover_common_finite_steps_only(results):
    torch, jax = results.trained
    jax = replace(jax, training=replace(jax.training, losses=((0, 1.5), (1, float("nan")), (99, 1.0))))
    torch = replace(torch, training=replace(torch.training, losses=((0, 1.0), (1, 1.0), (2, 1.0))))
    assert loss_gaps((torch, jax)) == ((0, 0.5),)


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (4e-5, "0.000040"), (0.123, "0.12"), (2.5, "2.50"), (3e-9, "less than 0.000001")])
def test_small_numbers_have_no_exponent(value, text):
    assert small(value) == text
