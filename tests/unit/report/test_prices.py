"""What hardware costs, with the basis of the price in words."""

from crossmesh.report.prices import rent


def test_rent_is_that_of_all_slices_with_its_source_and_age() -> None:
    found = rent("tpu_v5p_8", "on_demand", "", "", slices=2)
    assert found.usd_per_hour == 33.6
    assert found.basis == "on_demand: arXiv 2605.25645, table of prices; region not stated there, read 2026-05-01"


def test_rent_at_a_price_of_nothing_that_is_sold_says_what_is_sold() -> None:
    assert "Google Cloud sells a3-highgpu-2g as spot or flex_start" in rent("gpu_2xh100", "on_demand", "", "").basis
    assert "sells" not in rent("gpu_2xh100", "spot", "", "").basis
