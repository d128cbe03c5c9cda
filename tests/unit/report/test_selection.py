"""What a comparison is told that was not given any runs."""

from types import SimpleNamespace

import pytest

from crossmesh.errors import InputError
from crossmesh.report.comparing import select
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.track.tracker import TAG_KIND, TrackedRun


def test_runs_there_are_to_choose_from_are_named() -> None:
    runs = [TrackedRun(f"{number:032x}"[::-1], f"trial{number}", "FINISHED", {TAG_KIND: "train"}) for number in range(9)]
    tracker = SimpleNamespace(uri="sqlite:////x", recent=lambda kind: tuple(runs) if kind == "train" else ())
    named = r"runs=\[a,b\].*The newest finished runs: 00000000 \(train, trial0\), 10000000 \(train, trial1\)"
    with pytest.raises(InputError, match=named) as given:
        select(tracker, ExperimentSpec().name, (), "", "", "", {})  # type: ignore[arg-type]
    assert "trial4" not in str(given.value)
    empty = SimpleNamespace(uri="sqlite:////x", recent=lambda _: ())
    with pytest.raises(InputError, match=r"There is no finished run at sqlite:////x yet"):
        select(empty, ExperimentSpec().name, (), "", "", "", {})  # type: ignore[arg-type]
