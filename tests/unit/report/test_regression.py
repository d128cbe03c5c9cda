from dataclasses import replace

import pytest

from crossmesh.errors import InputError
from crossmesh.report.pages.write import make_report
from crossmesh.report.regression import judge_regressions
from crossmesh.report.variants import Repeat, Results


def pair(results, factor=1.0):
    """A baseline of 100 tokens/s and a candidate of `factor` times that, each repeated three times, 1% apart at the most."""

    def rated(variant, rates):
        repeats = tuple(Repeat(f"s {number}", 8, rate) for number, rate in enumerate(rates))
        return replace(variant, training=replace(variant.training, tokens_per_s=rates[0]), repeats=repeats)

    base, torch, jax = results.variants
    return Results("pair", (base, rated(torch, (100.0, 101.0, 100.5)), rated(jax, (100.0 * factor, 100.5 * factor, 101.0 * factor))), "x")


def verdict(results, baseline="torch", candidate="jax", **limits):
    runs = {one.name: one.run_id for one in results.variants}
    return [one.verdict for one in judge_regressions(make_report(results), (runs[baseline], runs[candidate]), limits)]


@pytest.mark.parametrize(
    ("factor", "limit", "verdict_"),
    [
        (0.99, "-3%", "within the limit"),
        (1.5, "0", "within the limit"),
        (0.90, "-3%", "regression"),
        (0.965, "-3%", "beyond the limit, but within its interval"),
        (0.99, "0", "within the smallest difference that matters"),
    ],
)
def test_only_a_change_whose_whole_interval_is_beyond_the_limit_is_a_regression(results, factor, limit, verdict_):
    assert verdict(pair(results, factor), tokens_per_s=limit) == [verdict_]


def test_one_run_each_does_not_fail_and_does_not_pass(results):
    """jax takes 214.9 s against 107.2: twice as long, one run each."""
    assert verdict(pair(results), wall_clock_s="5%") == ["beyond the limit, but not decided: one run each"]
    assert verdict(results, tokens_per_s="-3%") == ["beyond the limit, but not decided: one run each"]
    assert verdict(pair(results), wall_clock_s="101%") == ["within the limit"]


def test_solved_problems_change_in_points(results):
    """29 of 48 against 28: 2 points more, whose interval holds the limit."""
    assert verdict(pair(results), pass_at_1="0") == ["within the limit"]
    assert verdict(pair(results), "jax", "torch", pass_at_1="0") == ["beyond the limit, but within its interval"]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"tokens_per_s": "3 percent"}, "fail_if.tokens_per_s='3 percent' is not a limit"),
        ({"tokens_per_s": "3%"}, "Allowed: 0 or negative: more is better"),
        ({"wall_clock_s": "-3%"}, "Allowed: 0 or positive: less is better"),
        ({"usd": "0"}, r"fail_if.usd: not measured on torch \(not trained\)"),
        ({"ttft_p50_s": "0"}, "fail_if.ttft_p50_s: neither run has it"),
    ],
)
def test_a_limit_that_cannot_be_judged_is_the_users_error(results, limits, said):
    with pytest.raises(InputError, match=said):
        verdict(pair(results), **limits)


def test_runs_of_two_sciences_are_not_judged(results, changed):
    mixed = pair(changed("jax", science={"other": 1}))
    with pytest.raises(InputError, match="not comparable in speed: science"):
        verdict(mixed, tokens_per_s="-3%")
