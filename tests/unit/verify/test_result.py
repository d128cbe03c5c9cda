"""The verdict of a check, and what a person and a script read of it."""

import io
import json
import math

import pytest
from rich.console import Console

from crossmesh.verify.result import CheckResult, Limit

LOW = Limit("difference", 2e-4, 1e-3)
HIGH = Limit("speed", 2.9, 3.0, at_least=True)


@pytest.mark.parametrize(
    ("limit", "passed"),
    [
        (LOW, True),
        (Limit("difference", 1e-3, 1e-3), True),
        (Limit("difference", 1.001e-3, 1e-3), False),
        (HIGH, False),
        (Limit("speed", 3.0, 3.0, at_least=True), True),
        (Limit("difference", math.nan, 1e-3), False),
        (Limit("speed", math.nan, 3.0, at_least=True), False),
        (Limit("difference", math.inf, 1e-3), False),
    ],
)
def test_a_bound_is_kept_or_not(limit, passed):
    assert limit.passed is passed


def test_one_broken_bound_fails_the_check():
    assert CheckResult("c", (LOW,)).passed
    assert not CheckResult("c", (LOW, HIGH)).passed


@pytest.mark.parametrize("limits", [(), (LOW, LOW)])
def test_a_check_needs_bounds_of_different_names(limits):
    with pytest.raises(ValueError, match="one or more bounds of different names"):
        CheckResult("c", limits)


def test_the_record_has_what_scripts_read_and_is_json_whatever_was_measured():
    record = CheckResult("c", (LOW, HIGH, Limit("ratio", math.nan, 1.0)), {"losses": (1.0, math.inf), "counts": {"q": 2}}).record()
    assert json.loads(json.dumps(record, allow_nan=False)) == {
        "check": "c",
        "passed": False,
        "bound": {"difference": {"at_most": 1e-3}, "speed": {"at_least": 3.0}, "ratio": {"at_most": 1.0}},
        "worst": {"difference": 2e-4, "speed": 2.9, "ratio": "nan"},
        "source": "measured",
        "figures": {"losses": [1.0, "inf"], "counts": {"q": 2}},
    }


def test_the_table_names_verdicts_and_figures():
    text = io.StringIO()
    CheckResult("c", (LOW, HIGH), {"seconds": {"ours": 1.25}, "counts": {"q": 2, "k": 1}, "losses": [0.5, 0.25]}).show(
        Console(file=text, width=120)
    )
    lines = text.getvalue().splitlines()
    assert lines[0].strip() == "c: NOT PASSED"
    assert any("difference" in line and "0.0002" in line and "at most 0.001" in line and "NOT" not in line for line in lines)
    assert any("speed" in line and "2.9" in line and "at least 3" in line and "NOT PASSED" in line for line in lines)
    for part in ("seconds.ours", "1.25", "q: 2, k: 1", "0.5 0.25"):
        assert part in text.getvalue()
