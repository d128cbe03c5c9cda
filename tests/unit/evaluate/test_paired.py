"""Paired comparisons against values worked out by hand and against a simulation."""

import numpy as np
import pytest

from crossmesh.evaluate.paired import BOOTSTRAP, MCNEMAR, compare_counts, mcnemar_p


def once(*right):
    return {f"p{index}": (1, passed) for index, passed in enumerate(right)}


def test_mcnemar_by_hand():
    # 2 (C(10,0) + C(10,1) + C(10,2)) / 2^10
    assert mcnemar_p(8, 2) == pytest.approx(2 * 56 / 1024)
    assert mcnemar_p(2, 8) == mcnemar_p(8, 2)
    assert mcnemar_p(3, 0) == pytest.approx(0.25)
    assert mcnemar_p(5, 5) == mcnemar_p(0, 0) == 1.0


def test_greedy_answers_are_compared_by_mcnemar():
    # 8 problems only the one solves, 2 only the other, 20 both, 10 neither.
    result = compare_counts(once(*[1] * 8, *[0] * 2, *[1] * 20, *[0] * 10), once(*[0] * 8, *[1] * 2, *[1] * 20, *[0] * 10))
    assert (result.test, result.better, result.worse, result.problems) == (MCNEMAR, 8, 2, 40)
    assert (result.one, result.other, result.difference) == pytest.approx((0.7, 0.55, 0.15))
    assert result.p_value == pytest.approx(0.109375)
    assert not result.shown
    # Variance of the differences: (10/40 - 0.15^2) 40/39 = 0.23333, so the error is 0.07638 and the interval about 0.15 -+ 0.1497.
    assert (result.low, result.high) == pytest.approx((0.0, 0.3), abs=0.03)
    assert result.effect == pytest.approx(0.15 / 0.23333**0.5, abs=1e-4)
    # ((1.95996 + 0.84162) 0.48305 / 0.15)^2 = 81.4
    assert result.problems_needed == 82
    assert result.detectable == pytest.approx(2.80158 * 0.07638, abs=1e-4)
    # Phi(0.15 / 0.07638 - 1.95996) = Phi(0.004)
    assert result.power == pytest.approx(0.5016, abs=2e-3)
    assert result.samples_needed is None


def test_the_other_way_round_is_the_mirror_image():
    one, other = once(1, 1, 1, 0, 1, 1, 1), once(0, 1, 0, 1, 0, 0, 0)
    there, back = compare_counts(one, other), compare_counts(other, one)
    assert (back.difference, back.better, back.worse, back.p_value) == (-there.difference, there.worse, there.better, there.p_value)


def test_several_answers_are_compared_by_a_bootstrap_that_agrees_with_its_interval():
    one = {f"p{index}": (5, right) for index, right in enumerate([5, 5, 4, 3, 3, 2, 1, 0] * 6)}
    other = {f"p{index}": (5, right) for index, right in enumerate([5, 4, 3, 3, 1, 0, 0, 0] * 6)}
    result = compare_counts(one, other)
    assert (result.test, result.shown) == (BOOTSTRAP, True)
    # Differences 0, .2, .2, 0, .4, .4, .2, 0: mean .175, deviation .15612, error .02254.
    assert result.difference == pytest.approx(0.175)
    assert (result.low, result.high) == pytest.approx((0.175 - 0.0442, 0.175 + 0.0442), abs=0.006)
    assert compare_counts(one, other) == result
    # All five right or not: pass@5 says so for each problem, and McNemar tests it.
    at_5 = compare_counts(one, other, k=5)
    assert (at_5.test, at_5.better, at_5.worse) == (MCNEMAR, 12, 0)
    assert at_5.p_value == pytest.approx(2 / 2**12)


def test_equal_models_are_not_certain_to_be_equal():
    result = compare_counts(once(*[1, 0] * 24), once(*[1, 0] * 24))
    assert (result.difference, result.p_value, result.effect, result.problems_needed) == (0.0, 1.0, None, None)
    # (1 + 1) / 50 with margin 1.96 sqrt(2 / 50 / 50)
    assert (result.low, result.high) == pytest.approx((-0.0554, 0.0554), abs=1e-4)


def test_more_answers_help_only_as_far_as_they_are_what_varies():
    # Equal problems, all of the variance within them: 0.5 against 0.4 of five answers.
    generator = np.random.Generator(np.random.PCG64(1))
    one, other = ({f"p{index}": (5, int(right)) for index, right in enumerate(generator.binomial(5, p, 100))} for p in (0.5, 0.4))
    noisy = compare_counts(one, other)
    assert noisy.samples_needed is not None
    # With m answers the error is sqrt((.25 + .24) / m / 100); 0.1 needs it to be 0.0357: m = 3.8, here for the difference that was drawn.
    wanted = 0.49 / 100 * (2.80158 / noisy.difference) ** 2
    assert noisy.samples_needed == pytest.approx(wanted, rel=0.35, abs=1)
    # Every problem certain, and one better on some, the other on others: no number of answers changes that.
    fixed = compare_counts({f"p{i}": (5, 5 * (i % 2)) for i in range(20)}, {f"p{i}": (5, 5 * (i % 3 == 0)) for i in range(20)})
    assert fixed.samples_needed is None


def test_power_is_how_often_a_true_difference_shows():
    generator = np.random.Generator(np.random.PCG64(7))
    shown, powers = [], []
    for _ in range(60):
        one, other = (generator.random(200) < p for p in (0.6, 0.5))
        result = compare_counts(once(*one.astype(int).tolist()), once(*other.astype(int).tolist()))
        shown.append(result.p_value < 0.05)
        powers.append(result.detectable)
    # Error sqrt((.24 + .25) / 200) = .0495: 80% power at a difference of .139, 52% at .1, a little less exactly.
    assert np.mean(powers) == pytest.approx(0.139, abs=0.004)
    assert 0.3 < np.mean(shown) < 0.7


def test_other_problems_are_an_error():
    with pytest.raises(ValueError, match="the same problems: 2 and 1, 1 common"):
        compare_counts(once(1, 0), once(1))
    with pytest.raises(ValueError, match="the same problems"):
        compare_counts({}, {})
