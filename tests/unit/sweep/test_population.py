"""Population based training: who goes on from whom, with which settings; the same after every start."""

from collections.abc import Callable
from typing import Any

import pytest

from crossmesh.config.tune import TuneSpec
from crossmesh.errors import InputError
from crossmesh.sweep.population import Population
from crossmesh.sweep.search import settings_of
from crossmesh.sweep.state import DONE, FAILED, RUNNING, Point

SPACE: dict[str, Any] = {"optim.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "optim.weight_decay": [0.0, 0.1]}
TUNE = TuneSpec(scheduler="pbt", population=4, perturb_steps=10, space=SPACE)


def point(overrides: tuple[str, ...], place: int, loss: Callable[[int], float]) -> Point:
    return Point(f"{place:04}", "", overrides, state=DONE, loss=loss(place), run_id=f"run{place}")


def grown(search: Population, loss: Callable[[int], float]) -> list[Point]:
    points: list[Point] = []
    while (overrides := search.more(points)) is not None:
        points.append(point(overrides, len(points), loss))
    return points


def value(one: Point, key: str) -> str:
    return dict(override.split("=", 1) for override in one.overrides).get(key, "")


def settings(one: Point) -> dict[str, Any]:
    return settings_of(one.overrides, SPACE)


def test_the_worst_go_on_from_the_best_with_other_settings_and_the_rest_from_themselves() -> None:
    # In each generation the first member is the best and the last the worst.
    points = grown(Population(TUNE, 25), lambda place: float(place % 4))
    assert [value(one, "optim.stop_at") for one in points] == ["10"] * 4 + ["20"] * 4 + ["25"] * 4
    parents = [value(one, "checkpoint.resume_from") for one in points]
    assert parents == [*[""] * 4, "run0", "run1", "run2", "run0", "run4", "run5", "run6", "run4"]
    first, second = points[:4], points[4:8]
    assert [settings(one) for one in second[:3]] == [settings(one) for one in first[:3]]
    assert settings(second[3]) != settings(first[0])
    for one in points:
        assert 1e-4 <= settings(one)["optim.learning_rate"] <= 1e-2
        assert settings(one)["optim.weight_decay"] in (0.0, 0.1)
    assert Population(TUNE, 25).ranked(points)[0].run_id == "run8"
    assert Population(TUNE, 25).ranked(points[:8]) == ()


def test_it_is_the_same_search_after_every_start() -> None:
    points = grown(Population(TUNE, 25), lambda place: float(place % 4))
    for place in range(len(points)):
        assert Population(TUNE, 25).more(points[:place]) == points[place].overrides
    assert len({one.overrides for one in grown(Population(TuneSpec(scheduler="pbt", seed=1, space=SPACE), 25), float)[:4]}) == 4


def test_a_generation_waits_for_the_one_before_and_what_failed_goes_on_from_the_best() -> None:
    search = Population(TUNE, 25)
    points = grown(search, lambda place: float(place % 4))[:4]
    assert search.more([*points[:3], Point("3", "", points[3].overrides, state=RUNNING, loss=0.1)]) is None
    broken = [Point("0", "", points[0].overrides, state=FAILED), *points[1:]]
    found = [search.more(broken)]
    broken.append(point(found[0] or (), 4, float))
    assert value(broken[4], "checkpoint.resume_from") == "run1"
    assert search.more([Point(str(place), "", one.overrides, state=FAILED) for place, one in enumerate(points)]) is None


def test_settings_move_by_a_factor_or_to_a_neighbour_and_stay_within_the_space() -> None:
    wide = {"optim.learning_rate": {"low": 1.0, "high": 1.1}, "optim.weight_decay": [0.0, 0.1, 0.2, 0.3]}
    moved = set()
    for seed in range(40):
        tune = TuneSpec(scheduler="pbt", population=2, perturb_steps=1, seed=seed, space=wide)
        points = grown(Population(tune, 2), lambda place: float(place % 2))
        before, after = settings_of(points[0].overrides, wide), settings_of(points[3].overrides, wide)
        assert 1.0 <= after["optim.learning_rate"] <= 1.1
        moved.add(round(abs(after["optim.weight_decay"] - before["optim.weight_decay"]), 1))
    assert {0.0, 0.1} <= moved


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"space": {"lora.rank": [8, 16]}}, "lora.rank cannot change while a trial trains"),
        ({"space": SPACE, "search": "optuna"}, "drawn at random"),
        ({"space": SPACE, "metric": "tokens_per_s"}, "goes by the loss"),
        ({"space": SPACE, "population": 1}, "tune.population=1"),
        ({"space": SPACE, "quantile": 0.7}, "tune.quantile=0.7"),
        ({"space": SPACE, "perturb_steps": 30}, "would never be compared"),
    ],
)
def test_a_population_that_cannot_be_is_one_clear_message(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Population(TuneSpec(scheduler="pbt", **given), 25)
