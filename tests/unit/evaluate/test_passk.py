"""pass@k against values computed by hand, and intervals against published and exact ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.evaluate.passk import estimate, pass_at_k, wilson


@pytest.mark.parametrize(
    ("n", "c", "k", "value"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        # 1 - C(3,2)/C(5,2) = 1 - 3/10
        (5, 2, 2, 0.7),
        # 1 - C(7,5)/C(10,5) = 1 - 21/252
        (10, 3, 5, 1 - 21 / 252),
        # Fewer wrong answers than k: one of any k is right.
        (5, 3, 3, 1.0),
        # 1 - C(199,100)/C(200,100) = 1/2, where the binomials have 59 digits
        (200, 1, 100, 0.5),
        (20000, 1, 10000, 0.5),
    ],
)
def test_pass_at_k_by_hand(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-12)


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_the_binomials(case):
    from math import comb

    n, c, k = case
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(1, 2, 1), (2, 1, 3), (2, -1, 1), (2, 1, 0)])
def test_impossible_counts_are_errors(n, c, k):
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, c, k)


def test_wilson_interval_by_hand():
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with p = 0.3, n = 10, z = 1.959964
    assert wilson(3, 10) == pytest.approx((0.107791, 0.603221), abs=2e-6)
    assert wilson(0, 48) == pytest.approx((0.0, 0.074101), abs=2e-6)


def test_one_answer_each_gives_wilson():
    result = estimate([(1, 1)] * 3 + [(1, 0)] * 7, 1)
    assert (result.value, result.method, result.problems) == (pytest.approx(0.3), "wilson", 10)
    assert (result.low, result.high) == pytest.approx((0.107791, 0.603221), abs=2e-6)


def test_several_answers_give_a_seeded_bootstrap_over_problems():
    counts = [(5, c) for c in (0, 1, 2, 3, 4, 5)] * 8
    result = estimate(counts, 1, seed=3)
    assert result.value == pytest.approx(0.5)
    assert result.method == "bootstrap over problems"
    # The scores' standard deviation is 0.3416, so the mean's is 0.0493, and a normal interval is 0.5 -+ 0.0966.
    assert result.low == pytest.approx(0.5 - 0.0966, abs=0.01)
    assert result.high == pytest.approx(0.5 + 0.0966, abs=0.01)
    assert estimate(counts, 1, seed=3) == result
    assert estimate(counts, 5).value > result.value


def test_no_certainty_where_all_problems_failed_or_all_passed():
    failed = estimate([(5, 0)] * 12, 5)
    assert (failed.value, failed.low, failed.method) == (0.0, 0.0, "wilson")
    assert failed.high == pytest.approx(0.2425, abs=1e-3)
    assert estimate([(5, 5)] * 12, 5).low == pytest.approx(1 - 0.2425, abs=1e-3)


def test_no_problems_is_an_error():
    with pytest.raises(ValueError, match="at least one problem"):
        estimate([], 1)
