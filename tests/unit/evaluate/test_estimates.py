import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.evaluate.estimates import Estimate, Margin, change_over_rounds, difference, rate_of_runs, relative_change
from crossmesh.evaluate.paired import holm


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


def test_the_interval_of_a_speed_is_over_its_runs():
    """Logarithms 0, 0.1, 0.2: mean 0.1, s = 0.1; t(2; 0.975) = 4.3027, so +-4.3027 x 0.1 / sqrt(3) = 0.24842."""
    found = rate_of_runs([math.exp(0.0), math.exp(0.1), math.exp(0.2)])
    assert math.log(found.value) == pytest.approx(0.1)
    assert [math.log(end) for end in found.interval] == pytest.approx([0.1 - 0.24842, 0.1 + 0.24842], abs=1e-4)
    assert rate_of_runs([1.0, 1.1]).interval is None


def test_rounds_take_the_drift_of_the_machine_out():
    """The machine halves its speed between rounds; in each round the one is 10%, 11%, 12% faster."""
    found = change_over_rounds([(110.0, 100.0), (55.5, 50.0), (28.0, 25.0)])
    assert found.value == pytest.approx(0.11, abs=1e-3)
    assert 0.08 < found.low < 0.11 < found.high < 0.14
    assert found.p_value < 0.01
    assert change_over_rounds([(110.0, 100.0), (55.5, 50.0)]).shown is None


def test_holm_corrects_as_in_his_paper():
    """0.01 x 3, 0.02 x 2, 0.04 x 1, none below one before it."""
    assert holm([0.04, 0.01, 0.02]) == pytest.approx((0.04, 0.03, 0.04))
    assert holm([0.04]) == (0.04,)
