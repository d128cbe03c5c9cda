"""Points of a search: the same for the same seed, told what others came to, and stopped when behind."""

from dataclasses import replace
from pathlib import Path

import hydra
import pytest

from crossmesh.config.compose import register
from crossmesh.config.job import build_job
from crossmesh.config.tune import TuneKeys, TuneSpec
from crossmesh.errors import InputError
from crossmesh.sweep.search import TuneSearch, settings_of
from crossmesh.sweep.state import DONE, FAILED, Point

SPACE = {"optim.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "lora.rank": [8, 16], "model.dtype": ["float32"]}


def points_of(search: TuneSearch) -> list[Point]:
    points: list[Point] = []
    while (overrides := search.more(points)) is not None:
        points.append(Point(str(len(points)), "", overrides, state=DONE, loss=float(len(points))))
    return points


def test_a_grid_has_every_combination_and_says_values_as_hydra_reads_them() -> None:
    grid = TuneSpec(search="grid", space={"a": [1, 2], "b": [True, 1e-05]})
    found = [point.overrides for point in points_of(TuneSearch(grid, 10))]
    assert sorted(found) == [("a=1", "b=1e-05"), ("a=1", "b=true"), ("a=2", "b=1e-05"), ("a=2", "b=true")]


@pytest.mark.parametrize("kind", ["random", "optuna"])
def test_samples_are_within_the_space_and_as_many_as_asked_for(kind: str) -> None:
    tune = TuneSpec(search=kind, samples=6, space=SPACE)
    points = points_of(TuneSearch(tune, 10))
    assert len({point.overrides for point in points}) == len(points) == 6
    for point in points:
        settings = settings_of(point.overrides, SPACE)
        assert 1e-4 <= settings["optim.learning_rate"] <= 1e-2
        assert settings["lora.rank"] in (8, 16)
    assert [point.overrides for point in points_of(TuneSearch(tune, 10))] == [point.overrides for point in points]
    # Begun anew after three, a search does not draw the first three again, and takes what they came to.
    begun = TuneSearch(tune, 10)
    further = begun.more([*points[:2], replace(points[2], state=FAILED, loss=None)])
    assert further is not None
    assert (further in {point.overrides for point in points[:3]}) is False


def test_who_is_behind_at_a_rung_is_stopped_and_the_first_never() -> None:
    search = TuneSearch(TuneSpec(scheduler="asha", grace_steps=4, reduction=2, space=SPACE), 16)
    steps = range(1, 17)
    behind = [search.behind(Point(str(loss), ""), [(step, loss) for step in steps]) for loss in (1.0, 2.0, 0.5, 3.0)]
    assert behind == [False, True, False, True]
    assert not search.behind(Point("9", ""), [(step, 9.0) for step in range(1, 4)])  # Not before the grace is over.
    assert not TuneSearch(TuneSpec(space=SPACE), 16).behind(Point("9", ""), [(16, 9.0)])
    ended = [Point("a", "", state=DONE, loss=2.0), Point("b", "", state=DONE, loss=1.0), Point("c", "", state=FAILED, loss=0.1)]
    assert [one.key for one in search.ranked(ended)] == ["b", "a"]


@pytest.mark.parametrize(
    ("search", "values", "said"),
    [
        ("grid", {"low": 1, "high": 2}, "is a range, and tune.search=grid"),
        ("random", {"low": 2, "high": 1}, "not possible"),
        ("random", {"low": 0, "high": 1, "log": True}, "not possible"),
        ("random", {"low": 0, "high": 1, "step": 1}, "not possible"),
        ("random", [], "not possible"),
    ],
)
def test_a_space_that_cannot_be_is_said_by_its_key(search: str, values: object, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        TuneSpec(search=search, space={"a.b": values})
    assert "a.b" in str(error.value)


def test_every_shipped_search_composes(conf: Path) -> None:
    register("tune", TuneKeys)
    spaces = {"default": set(), "pbt": {"optim.learning_rate", "optim.weight_decay"}}
    for file in sorted((conf / "tune").glob("*.yaml")):
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            keys = build_job(hydra.compose("job/tune", [f"tune={file.stem}"]), TuneKeys, conf).keys
        assert set(keys.tune.space) == spaces.get(file.stem, {"optim.learning_rate", "lora.rank"})
