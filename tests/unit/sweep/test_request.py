"""What a sweep says of its budget before it begins."""

from datetime import date
from pathlib import Path

import pytest

from crossmesh.config.compose import compose_spec
from crossmesh.config.sweep import SweepSpec
from crossmesh.sweep.request import price_warnings, search_request

TODAY = date(2026, 5, 2)


@pytest.mark.parametrize(
    ("arguments", "max_usd", "said"),
    [
        (
            ("hardware=gpu_2xh100",),
            20.0,
            ("Nothing is sold at this on_demand price: Google Cloud sells a3-highgpu-2g as spot or flex_start",),
        ),
        (("hardware=gpu_2xh100", "plan.price=spot"), 20.0, ("is of unknown age",)),
        (("hardware=gpu_2xh100",), 0.0, ()),
        (("hardware=cpu",), 20.0, ()),
    ],
)
def test_a_budget_says_what_is_doubtful_about_its_price(
    arguments: tuple[str, ...], max_usd: float, said: tuple[str, ...], checkout: Path
) -> None:
    spec = compose_spec(checkout / "conf", "model=tiny_llama", *arguments)
    request = search_request("finetune", spec, (), SweepSpec(max_usd=max_usd), "table", force=False)
    warnings = price_warnings([spec, spec], request, TODAY)
    assert len(warnings) == len(said)
    for warning, words in zip(warnings, said, strict=True):
        assert words in warning
        assert warning.startswith("sweep.max_usd=20 on gpu_2xh100: ")
