"""Each bound of the overhead check breaks it; the measurements are made up."""

from copy import deepcopy

import pytest

from crossmesh.verify.overhead.check import judge_overhead

BACKEND = {
    "step": {"ratios": {"bare": {"median": 1.01}}, "loss_difference": {"bare": 1e-6}},
    "checkpoint": {"share_of_loop": 0.004, "waited_over_held": {"median": 15.0}},
    "run": {"outside_share": 0.004},
}
STARTS = {"first": {"first_step_s": 20.0, "compilations": 4}, "second": {"first_step_s": 9.0, "compilations": 0}}
GOOD = {"torch": deepcopy(BACKEND), "jax": {**deepcopy(BACKEND), "starts": STARTS}}


def test_good_measurements_pass():
    assert judge_overhead(GOOD, {}).passed


@pytest.mark.parametrize(
    ("path", "value", "broken"),
    [
        ("torch.run.outside_share", 0.03, "torch.outside_step_share"),
        ("jax.step.ratios.bare.median", 0.96, "jax.speed_over_bare"),
        ("torch.step.loss_difference.bare", 0.01, "torch.work_differs"),
        ("jax.checkpoint.share_of_loop", 0.02, "jax.checkpoint_share"),
        ("torch.checkpoint.waited_over_held.median", 9.0, "torch.checkpoint_wait_over_stall"),
        ("jax.starts.second.compilations", 1, "jax.second_start_compilations"),
        ("jax.starts.first.compilations", 0, "jax.first_start_compilations"),
        ("jax.starts.second.first_step_s", 11.0, "jax.second_start_time"),
    ],
)
def test_each_bound_can_break_the_check(path, value, broken):
    measured = deepcopy(GOOD)
    *where, last = path.split(".")
    place = measured
    for key in where:
        place = place[key]
    place[last] = value
    assert [limit.name for limit in judge_overhead(measured, {}).limits if not limit.passed] == [broken]
