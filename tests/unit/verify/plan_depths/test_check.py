from dataclasses import replace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.plan.figures import Compiled
from crossmesh.verify.plan_depths.check import judge_plan_depths, verify_plan_depths

WHOLE = Compiled("libtpu", 21.0e9, {"weights": 15e9}, 164e12, 1e12, 0.60, extrapolated=False)


def test_memory_within_3_percent_and_time_within_5() -> None:
    near = replace(WHOLE, hbm_bytes=21.5e9, seconds=0.62, extrapolated=True)
    assert judge_plan_depths(near, WHOLE).passed
    assert judge_plan_depths(near, WHOLE).worst["memory_difference"] == pytest.approx(0.5 / 21)
    assert not judge_plan_depths(replace(near, hbm_bytes=21.7e9), WHOLE).passed
    assert not judge_plan_depths(replace(near, seconds=0.56), WHOLE).passed


def test_a_program_that_needs_too_much_is_judged_by_memory_alone() -> None:
    too_much = replace(WHOLE, hbm_bytes=140e9, flops=None, seconds=None)
    assert [limit.name for limit in judge_plan_depths(replace(WHOLE, hbm_bytes=141e9), too_much).limits] == ["memory_difference"]


def test_hardware_without_a_compiler_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="hardware=cpu with backend=torch is not compiled"):
        verify_plan_depths(ExperimentSpec(), tmp_path, Console())
