import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.report.estimates import Estimate, Margin, difference, median_estimate, relative_change


def test_a_difference_has_newcombes_interval():
    """Worked example of Newcombe 1998 (table II, case a): 56/70 against 48/80, method 10: 0.0524 to 0.3339."""
    found = difference(Estimate(56 / 70, 0.6917, 0.8769), Estimate(48 / 80, 0.4903, 0.7004))
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.0524, abs=1e-3), pytest.approx(0.3339, abs=1e-3))


@given(st.tuples(*[st.floats(0, 1)] * 6))
def test_swapping_the_two_mirrors_the_difference(numbers):
    a, b = sorted(numbers[:3]), sorted(numbers[3:])
    one, other = Estimate(a[1], a[0], a[2]), Estimate(b[1], b[0], b[2])
    there, back = difference(one, other), difference(other, one)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert there.low <= there.value + 1e-12
    assert there.value <= there.high + 1e-12


def test_a_relative_change_is_a_difference_of_logarithms():
    """Both intervals are +-10% in logarithms: that of the ratio is +-sqrt(2) x 10%."""
    ten = math.exp(0.1)
    found = relative_change(Estimate(120, 120 / ten, 120 * ten), Estimate(100, 100 / ten, 100 * ten))
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(1.2 * math.exp(-math.sqrt(2) * 0.1) - 1)
    assert found.high == pytest.approx(1.2 * math.exp(math.sqrt(2) * 0.1) - 1)


def test_without_an_interval_nothing_is_shown():
    assert relative_change(Estimate(2.0), Estimate(1.0)).shown is None
    assert not Margin(0.1, -0.01, 0.2).shown
    assert Margin(0.1, 0.01, 0.2).shown
    assert Margin(-0.1, -0.2, -0.01).shown


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (100, 40, 61)])
def test_a_medians_interval_lies_between_the_ranks_of_the_tables(count, low, high):
    """Ranks of the 95% interval of a median as tabulated (Conover 1999, table A3)."""
    values = list(range(1, count + 1))
    found = median_estimate(values, (count + 1) / 2)
    assert found.interval == (low, high)


def test_five_values_have_no_interval():
    assert median_estimate([1, 2, 3, 4, 5], 3).interval is None


def test_many_values_are_ranked_by_the_normal_approximation():
    """1,000 values: (1000 - 1.96 x sqrt(1000)) / 2 = 469."""
    assert median_estimate(range(1, 1001), 500.5).interval == (469, 532)
