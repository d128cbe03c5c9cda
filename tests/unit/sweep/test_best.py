"""The best of a search is named only when it is better by a difference that matters."""

from crossmesh.spec.verdicts import MattersSpec
from crossmesh.sweep.best import best_words, leaders
from crossmesh.sweep.state import DONE, Point

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
