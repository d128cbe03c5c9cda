"""Which points of a plan are compiled now."""

from dataclasses import replace
from datetime import date

import pytest

from crossmesh.config.planning import PlanSpec
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.plan.compilers.choice import best_on_tpu, worth_compiling
from crossmesh.plan.figures import Compiled, figures
from crossmesh.plan.training.forecast import Forecast, forecast
from plan_points import paper_point

ANSWER = Compiled("libtpu", 21e9, {}, None, None, None, extrapolated=False)


@pytest.fixture(scope="module")
def planned() -> Forecast:
    return forecast(paper_point(), PlanSpec(), date(2026, 6, 1))


def priced(planned: Forecast, step_s: float, usd: float) -> Forecast:
    return replace(planned, figures=replace(planned.figures, step_s=step_s), price=replace(planned.price, usd_per_hour=usd))


def test_a_single_point_is_compiled_unless_it_has_an_answer_or_no_compiler(planned: Forecast) -> None:
    answered = replace(planned, figures=figures(planned.point, ANSWER))
    assert worth_compiling("auto", [planned], lambda point: True) == [planned]
    assert worth_compiling("auto", [answered], lambda point: True) == []
    assert worth_compiling("auto", [planned], lambda point: False) == []
    assert worth_compiling("never", [planned], lambda point: True) == []


def test_of_a_sweep_the_two_best_tpu_points_are_compiled(planned: Forecast) -> None:
    gpu = replace(planned, point=paper_point(slice=find_slice("gpu_2xh100")))
    fast, cheap, dominated, dear = (priced(planned, *figure) for figure in ((1, 50), (2, 10), (3, 12), (1.5, 60)))
    best_gpu = priced(gpu, 0.1, 1)
    sweep = [dominated, dear, best_gpu, fast, cheap]
    assert best_on_tpu(sweep) == [cheap, fast]
    assert best_on_tpu([dominated, cheap]) == [cheap, dominated]
    answered = replace(cheap, figures=replace(cheap.figures, compiled=ANSWER))
    assert worth_compiling("auto", [answered, fast, dominated], lambda point: True) == [fast]


def test_always_is_every_point_that_keeps_the_rules(planned: Forecast) -> None:
    broken = forecast(paper_point(slice=find_slice("tpu_v6e_8"), mesh=MeshShape(1, 1, 8)), PlanSpec(), date(2026, 6, 1))
    too_big = forecast(paper_point(micro=8, remat="none"), PlanSpec(), date(2026, 6, 1))
    assert not too_big.fits
    stale = replace(planned, figures=figures(planned.point, replace(ANSWER, warnings=("stale",))))
    answered = replace(planned, figures=figures(planned.point, ANSWER))
    assert worth_compiling("always", [planned, broken, too_big, stale, answered], lambda point: True) == [planned, too_big, stale]
    assert worth_compiling("auto", [stale], lambda point: True) == []
