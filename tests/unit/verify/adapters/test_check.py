"""The check of many adapters can fail, by each of its bounds."""

from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LoraSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.verify.adapters.check import judge_adapters, verify_adapters


def measured(**changed: Any) -> dict[str, Any]:
    ratios = {"mixed_over_one_adapter": {"median": changed.pop("ratio", 0.95)}}
    return {"unlike_alone": 0, "like_another": 0, "ratios": ratios, **changed}


def test_equal_answers_at_nine_tenths_of_the_throughput_pass():
    assert judge_adapters(measured(), {}).passed


@pytest.mark.parametrize(
    ("changed", "failed"),
    [
        ({"unlike_alone": 1}, "answers_unlike_alone"),
        ({"like_another": 1}, "answers_like_another_model"),
        ({"ratio": 0.89}, "mixed_over_one_adapter"),
    ],
)
def test_one_bound_that_is_not_kept_fails(changed, failed):
    result = judge_adapters(measured(**changed), {})
    assert [limit.name for limit in result.limits if not limit.passed] == [failed]


def test_a_precision_whose_near_ties_go_either_way_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"model\.dtype='bfloat16'.*float32 in this check"):
        verify_adapters(ExperimentSpec(model=ModelSpec(dtype="bfloat16")), tmp_path, Console())


def test_an_adapter_without_a_rank_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"lora\.rank=0.*a positive number in this check"):
        verify_adapters(ExperimentSpec(lora=LoraSpec(rank=0)), tmp_path, Console())
