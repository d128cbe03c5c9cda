"""Ratios of contenders that take turns, on a clock that the test moves."""

import math
import random

import pytest

from crossmesh.verify.measure import ratio, take_turns


class Machine:
    """A clock, and contenders that take a known time on a machine that gets slower."""

    def __init__(self, slow_down: float = 1.0):
        self.now = 0.0
        self.slow_down = slow_down
        self.calls: list[str] = []

    def contender(self, name, seconds):
        def call():
            self.calls.append(name)
            self.now += seconds * self.slow_down ** (len(self.calls) - 1)

        return call

    def run(self, rounds, warm_up=1, **seconds):
        told = []
        contenders = {name: self.contender(name, value) for name, value in seconds.items()}
        found = take_turns(contenders, rounds, lambda *said: told.append(said), warm_up, lambda: self.now)
        return found, told


def test_contenders_take_turns_in_alternating_order_and_warm_up_does_not_count():
    machine = Machine()
    found, told = machine.run(3, a=2.0, b=1.0)
    assert machine.calls == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert found == {"a": [2.0] * 3, "b": [1.0] * 3}
    assert told[0] == ("rounds", 1, 4)
    assert told[-1] == ("rounds", 4, 4)


def test_a_machine_that_slows_down_moves_times_but_not_the_ratio():
    found, _ = Machine(slow_down=1.05).run(8, a=2.0, b=1.0)
    assert max(found["a"]) > 1.8 * min(found["a"])
    measured = ratio(found["a"], found["b"])
    assert measured.median == pytest.approx(2.0, rel=0.01)
    assert measured.low == pytest.approx(2.0 / 1.05)
    assert measured.high == pytest.approx(2.0 * 1.05)


def test_one_hiccup_moves_neither_the_median_nor_the_interval():
    above = [2.0] * 11
    above[4] = 50.0
    measured = ratio(above, [1.0] * 11)
    assert (measured.median, measured.low, measured.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(("rounds", "depth"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (20, 5), (25, 7)])
def test_the_interval_is_the_sign_tests(rounds, depth):
    """Depths as tabulated for the sign test at 95% (Conover, "Practical Nonparametric Statistics")."""
    values = [float(value) for value in range(1, rounds + 1)]
    measured = ratio(values, [1.0] * rounds)
    assert (measured.low, measured.high) == (values[depth], values[-1 - depth])
    assert measured.rounds == rounds
    assert (measured.confidence >= 0.95) is (rounds >= 6)


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    generator = random.Random(0)
    truth = math.exp(0.1)
    held = 0
    for _ in range(400):
        measured = ratio([math.exp(generator.gauss(0.1, 0.3)) for _ in range(12)], [1.0] * 12)
        held += measured.low <= truth <= measured.high
    assert held / 400 >= 0.94


@pytest.mark.parametrize(("above", "below"), [([], []), ([1.0], [1.0, 2.0])])
def test_ratios_need_values_of_the_same_rounds(above, below):
    with pytest.raises(ValueError, match="same rounds"):
        ratio(above, below)
