"""The best of a search, or of a sweep, is named only when it is better by a difference that matters and is more than chance."""

from dataclasses import replace

import pytest

from crossmesh.config.verdicts import MattersSpec
from crossmesh.sweep.best import Learnt, best_words, leaders, verdicts
from crossmesh.sweep.state import DONE, FAILED, Point

MATTERS = MattersSpec(loss=0.001, speed=2.0)


def losses(*values: float) -> tuple[Point, ...]:
    return tuple(Point(str(number), f"rate={number}", state=DONE, loss=value) for number, value in enumerate(values))


def rates(*values: float) -> tuple[Point, ...]:
    return tuple(Point(str(number), f"micro={number}", state=DONE, tokens_per_s=value) for number, value in enumerate(values))


def test_losses_that_differ_by_less_than_matters_are_equal() -> None:
    ranked = losses(1.2500000, 1.2500005, 1.26)
    assert [one.label for one in leaders(ranked, "loss", MATTERS)] == ["rate=0", "rate=1"]
    assert best_words(ranked, "loss", MATTERS) == "no difference that matters: equal within 0.001 nats/token: rate=0, rate=1"


def test_a_lower_loss_is_named_with_its_margin() -> None:
    words = best_words(losses(1.25, 1.26), "loss", MATTERS)
    assert words == "best of those that ran to their end: rate=0, lower by 0.01 nats/token than rate=1; one run each"


def test_a_higher_rate_of_one_run_each_decides_nothing() -> None:
    assert best_words(rates(120.0, 100.0), "tokens_per_s", MATTERS).startswith(
        "not decided, one run each; the highest is micro=0, by 20% over"
    )
    assert best_words(rates(101.0, 100.0), "tokens_per_s", MATTERS).startswith(
        "no difference that matters: equal within 2%: micro=0, micro=1"
    )


def test_one_alone_and_none() -> None:
    assert best_words(losses(1.0), "loss", MATTERS) == "the only one that ran to its end: rate=0"
    assert best_words((), "loss", MATTERS) == "best: none ran to its end"


def test_no_difference_is_too_small_where_every_one_matters() -> None:
    nothing = MattersSpec(loss=0.0)
    assert len(leaders(losses(1.0, 1.0000001), "loss", nothing)) == 1


def point(name: str, loss: float | None = 1.0, rate: float | None = 100.0, usd: float | None = None) -> Point:
    return Point(name, f"micro={name}", state=DONE, loss=loss, tokens_per_s=rate, usd_per_hour=usd, run_id=name)


def repeated(**rates: tuple[float, ...]) -> dict[str, dict[tuple[str, str], float]]:
    return {name: {(f"s {number}", "8"): rate for number, rate in enumerate(own)} for name, own in rates.items()}


def said(points: tuple[Point, ...], rates: dict[str, dict[tuple[str, str], float]] | None = None) -> dict[str, tuple[bool, str]]:
    found = verdicts(points, MATTERS, {}, rates or {})
    return {one.quantity: (one.decided, one.words) for one in found}


def test_one_run_each_decides_no_speed_and_no_cost() -> None:
    found = said((point("a", rate=120.0, usd=9.0), point("b", usd=36.0)))
    assert found["tokens/s"] == (False, "not decided: one run each; first is micro=a with 120 tokens/s, 16.7% ahead of micro=b")
    assert found["USD per million tokens"][1].startswith("not decided: one run each; first is micro=a with 20.8333 USD per million tokens")


def test_repeats_decide_with_an_interval_and_holm() -> None:
    points = (point("a", rate=120.0), point("b"), point("c", rate=90.0))
    rates = repeated(a=(120.0, 121.0, 119.0), b=(100.0, 101.0, 99.5), c=(90.0, 90.5, 89.0))
    decided, words = said(points, rates)["tokens/s"]
    assert decided
    assert words.startswith("best is micro=a with 120 tokens/s, 19.8% (19.")
    assert words.endswith("Holm-corrected for 2 comparisons")
    decided, words = said(points, repeated(a=(120.0, 121.0, 119.0), b=(100.0, 101.0, 99.5)))["tokens/s"]
    assert not decided
    assert words.startswith("not decided: fewer than 3 repeats of each")
    decided, words = said(points[:2], repeated(a=(120.0, 80.0, 130.0), b=(100.0, 101.0, 99.5)))["tokens/s"]
    assert (decided, words.partition(":")[0]) == (False, "no difference shown")
    decided, words = said(points[:2], repeated(a=(100.5, 100.6, 100.4), b=(100.0, 100.1, 99.9)))["tokens/s"]
    assert (decided, words.partition(":")[0]) == (False, "equal within 2%")


def test_the_best_is_the_one_that_the_repeats_show_not_the_single_run() -> None:
    points = (point("a", rate=120.0), point("b"))
    decided, words = said(points, repeated(a=(100.0, 101.0, 99.0), b=(110.0, 111.0, 109.0)))["tokens/s"]
    assert decided
    assert words.startswith("best is micro=b with 110 tokens/s, 10.0% (")


def test_the_best_leads_every_other_one_or_the_one_that_it_does_not_lead_is_named() -> None:
    points = (point("a", rate=120.0), point("b", rate=110.0), point("c", rate=109.0))
    decided, words = said(points, repeated(a=(120.0, 121.0, 119.0), b=(110.0, 111.0, 109.0), c=(125.0, 126.0, 124.0)))["tokens/s"]
    assert decided
    assert words.startswith("best is micro=c")
    decided, words = said(points, repeated(a=(120.0, 121.0, 119.0), b=(110.0, 111.0, 109.0), c=(80.0, 140.0, 108.0)))["tokens/s"]
    assert not decided
    assert words.startswith("no difference shown: micro=a with 120 tokens/s, ")
    assert "ahead of micro=c" in words


def test_a_cost_is_decided_over_the_same_rounds_at_each_price() -> None:
    points = (point("a", rate=120.0, usd=36.0), point("b", usd=9.0))
    rates = repeated(a=(120.0, 121.0, 119.0), b=(100.0, 101.0, 99.5))
    found = said(points, rates)
    assert found["tokens/s"][1].startswith("best is micro=a")
    assert found["USD per million tokens"] == (True, found["USD per million tokens"][1])
    assert found["USD per million tokens"][1].startswith("best is micro=b with 24.9589 USD per million tokens, 233.9% (")


def test_rates_of_other_sciences_and_of_emulated_hardware_are_no_rivals() -> None:
    points = (point("a", rate=120.0), point("b"), point("c", rate=500.0), replace(point("d", rate=900.0), emulated=True))
    learnt = {name: Learnt("other" if name == "c" else "one", "rows") for name in "abcd"}
    speeds = [one for one in verdicts(points, MATTERS, learnt, {}) if one.quantity == "tokens/s"]
    assert [one.best for one in speeds] == ["micro=a"]


def test_losses_on_other_rows_are_not_compared() -> None:
    points = (point("a", loss=0.5), point("b"))
    learnt = {"a": Learnt("1", "rows"), "b": Learnt("2", "others")}
    (loss,) = (one for one in verdicts(points, MATTERS, learnt, {}) if one.quantity == "loss")
    assert (loss.best, loss.decided, loss.words) == ("", False, "not compared: the trials did not have the same rows")
    (loss,) = (one for one in verdicts(points, MATTERS, {}, {}) if one.quantity == "loss")
    assert (loss.best, loss.decided) == ("micro=a", True)
    assert (
        loss.words == "0.5000 nats/token; best of those that ran to their end: micro=a, lower by 0.5 nats/token than micro=b; one run each"
    )


@pytest.mark.parametrize("points", [(), (point("a"),), (point("a"), replace(point("b"), state=FAILED))])
def test_fewer_than_two_that_ended_have_no_best(points: tuple[Point, ...]) -> None:
    assert verdicts(points, MATTERS, {}, {}) == ()
