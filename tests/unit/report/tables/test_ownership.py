from dataclasses import replace

import pytest

from crossmesh.report.pages.write import make_report
from crossmesh.report.tables.ownership import System, break_even_hours, break_even_words, find_system

TPU = System("TPU", 56.11, 21.52, 1)
GPU = System("GPU", 119.23, 22.12, 1)


@pytest.mark.parametrize(("hours", "tpu", "gpu"), [(1, 77.63, 141.35), (8, 228.27, 296.19), (24, 572.59, 650.11)])
def test_the_papers_total_costs(hours, tpu, gpu):
    assert (TPU.usd(hours), GPU.usd(hours)) == (pytest.approx(tpu, abs=0.01), pytest.approx(gpu, abs=0.01))


def test_the_papers_systems_never_break_even():
    assert break_even_hours(TPU, GPU) is None
    assert break_even_words(GPU, TPU) == "TPU is cheaper than GPU however long it serves"


def test_dear_training_and_cheap_serving_break_even():
    """40 USD more to train, 4 USD less an hour: 10 h."""
    assert break_even_hours(System("a", 100, 6, 1), System("b", 60, 10, 1)) == pytest.approx(10)
    assert break_even_words(System("b", 60, 10, 1), System("a", 100, 6, 1)) == "a is cheaper than b from 10 h of serving on, b before"


def test_a_load_asks_for_as_many_engines_as_the_goodput_says(served):
    """torch sustains 800/256 = 3.125 requests/s within the SLO at best, so 10 a second take four engines of 30 USD/h."""
    torch = served().variants[1]
    assert find_system(torch, 10.0) == System("torch", pytest.approx(107.2 / 360), 120.0, 4)
    assert find_system(torch, 0.0).engines == 1


def test_what_cannot_be_owned_says_why(results, served):
    assert find_system(results.variants[0], 0.0) == "not trained"
    flagged = served(flags=("impossible: faster than light",)).variants[2]
    assert find_system(flagged, 1.0) == "no sound benchmark says what it sustains within the SLO"


def test_totals_and_break_even_are_in_the_report(served):
    report = make_report(replace(served(), hours=(2.0,))).json()
    owned = next(one for one in report["quantities"] if one["key"] == "owned_usd/2")
    assert owned["cells"]["torch"]["value"] == pytest.approx(107.2 / 360 + 60)
    assert owned["cells"]["base"] == {"value": None, "why": "not trained"}
    assert report["break_even"] == ["jax is cheaper than torch from 0.0498 h of serving on, torch before"]
