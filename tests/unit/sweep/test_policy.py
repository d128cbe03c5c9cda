"""What follows from where a sweep stands."""

from dataclasses import replace

import pytest

from crossmesh.config.sweep import SweepSpec
from crossmesh.sweep.policy import Need, exit_code, over_budget, startable, try_again
from crossmesh.sweep.state import FAILED, REJECTED, Point, Spent, SweepState, identity_of, new_points, state_of

POINT = Point("a", "a=1")


@pytest.mark.parametrize(
    ("spent", "limits", "said"),
    [
        (Spent(9.99, 5), SweepSpec(max_usd=10), ""),
        (Spent(10.0, 5), SweepSpec(max_usd=10), "cost 10.00 USD, which reaches sweep.max_usd=10"),
        (Spent(99, 2.0), SweepSpec(max_hours=2), "run 2.00 hours together, which reaches sweep.max_hours=2"),
        (Spent(99, 99), SweepSpec(), ""),
    ],
)
def test_the_budget_is_reached_at_the_limit_and_without_one_never(spent: Spent, limits: SweepSpec, said: str) -> None:
    assert said in over_budget(spent, limits)
    assert bool(said) == bool(over_budget(spent, limits))


def test_a_failure_is_tried_again_as_often_as_allowed_and_a_divergence_never() -> None:
    failed = replace(POINT, state=FAILED, tries=1)
    assert try_again(failed, SweepSpec(retries=1))
    assert not try_again(replace(failed, tries=2), SweepSpec(retries=1))
    assert not try_again(failed, SweepSpec(retries=0))
    assert not try_again(replace(failed, diverged=True), SweepSpec(retries=5))
    assert not try_again(replace(failed, state=REJECTED), SweepSpec(retries=5))


def test_what_has_room_starts_in_order_each_kind_for_itself() -> None:
    slice_, gpus = Need("TPU-v5p-8-head", 1), Need("accelerator_type:H100", 2)
    room = {"TPU-v5p-8-head": 2.0, "accelerator_type:H100": 2.0}
    assert startable([slice_, gpus, gpus, slice_, slice_], [], room, 0) == [0, 1, 3]
    assert startable([slice_, gpus, gpus, slice_, slice_], [slice_], room, 0) == [0, 1]
    assert startable([slice_, gpus, gpus, slice_, slice_], [], room, 2) == [0, 1]
    assert startable([gpus, gpus], [], {}, 0) == [0]  # None there yet: the first makes the cluster grow.
    assert startable([slice_, gpus], [slice_], room, 1) == []


@pytest.mark.parametrize(("codes", "worst"), [((0, 0), 0), ((0, 3), 3), ((3, 2), 3), ((3, 1, 0), 1), ((1, 4, 3), 4), ((2,), 2)])
def test_the_exit_code_is_that_of_the_worst_point(codes: tuple[int, ...], worst: int) -> None:
    assert exit_code([replace(POINT, exit_code=code) for code in codes]) == worst


def test_a_sweep_is_its_points_whatever_their_order_the_budget_or_the_output() -> None:
    one = [("a=1", "b=1"), ("a=2", "b=1")]
    same = [("b=1", "sweep.max_usd=5", "a=2"), ("a=1", "b=1", "output=json", "force=true")]
    assert identity_of("finetune", one) == identity_of("finetune", same)
    assert len({identity_of("finetune", one), identity_of("finetune", one[:1]), identity_of("benchmark", one)}) == 3
    points = new_points(same)
    assert {point.key for point in points} == {point.key for point in new_points(one)}
    assert [point.label for point in new_points(one)] == ["a=1", "a=2"]


def test_a_state_is_itself_again_and_money_is_counted_where_there_is_a_price() -> None:
    points = (replace(POINT, seconds=1800, usd_per_hour=8.0), replace(POINT, key="b", seconds=900))
    state = SweepState("i", "finetune", "n", "c", points=points)
    assert state_of(state.json()) == state
    assert state.spent == Spent(usd=4.0, hours=0.75)
    again = replace(points[0], state=FAILED, reason="r", tries=2, exit_code=1).again()
    assert (again.state, again.seconds, again.tries, again.exit_code, again.reason) == ("waiting", 1800, 2, 0, "")
