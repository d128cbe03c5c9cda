"""What docs/compare.md says of who wins is what the code does."""

from pathlib import Path

import pytest

from crossmesh.config.verdicts import MattersSpec
from crossmesh.evaluate.estimates import FEWEST_RUNS
from crossmesh.report.winners import _LEVEL, _REPEATED
from crossmesh.sweep.repeat import _MOST_RUNS
from crossmesh.track.load import _LIMITS, GPU_THROTTLED, MEMORY, OTHERS, STEAL, THROTTLED, load_reasons

SAID = " ".join((Path(__file__).parents[3] / "docs" / "compare.md").read_text(encoding="utf-8").partition("## Who wins")[2].split())


def test_the_smallest_differences_that_matter_are_the_defaults():
    own = MattersSpec()
    for words in (
        f"`matters.loss={own.loss:g}` nats",
        f"`matters.pass_at_k={own.pass_at_k:g}` point",
        f"`matters.speed={own.speed:g}` and `matters.usd={own.usd:g}` percent",
        f"p below {_LEVEL:g}",
    ):
        assert words in SAID


def test_the_repeats_that_a_speed_needs_and_what_is_decided_by_them():
    assert f"at least {FEWEST_RUNS} interleaved repeats of each run" in SAID
    assert f"At most {_MOST_RUNS} runs are repeated together" in SAID
    assert set(_REPEATED) == {"tokens_per_s", "mfu", "usd_per_million_tokens"}
    assert "| training speed, MFU, USD per million tokens | t interval of the log ratios" in SAID


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (STEAL, "stole more than {:g}% of the CPUs"),
        (OTHERS, "used more than {:g}% of them"),
        (MEMORY, "waited for memory more than {:g}% of the time"),
        (GPU_THROTTLED, "for heat or power more than {:g}% of the time"),
    ],
)
def test_the_load_under_which_a_repeat_decides_nothing(key, words):
    limit = _LIMITS[key][0]
    assert words.format(limit) in SAID
    assert load_reasons({key: limit}) == ()
    assert load_reasons({key: limit + 1.0}) != ()


def test_no_other_load_is_judged():
    assert set(_LIMITS) == {STEAL, OTHERS, MEMORY, GPU_THROTTLED, THROTTLED}
    assert load_reasons({THROTTLED: 1.0}) != ()
    assert load_reasons({"clock_mhz": 100.0}) == ()
