"""Runs to compare: what is said when none is given, and which key gave one that cannot be used."""

from types import SimpleNamespace
from typing import cast

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.errors import InputError
from crossmesh.report.comparing import select
from crossmesh.track.tracked_run import TAG_KIND, TrackedRun
from crossmesh.track.tracker import Tracker

RUNS = {
    "a" * 32: TrackedRun("a" * 32, "torch", "FINISHED", {TAG_KIND: "train"}),
    "ab" * 16: TrackedRun("ab" * 16, "half", "FAILED", {TAG_KIND: "train"}),
}


class Store:
    uri, ui_command, title = "sqlite:////mlflow.db", "mlflow ui", "MLflow"

    def require_kept(self, key: str, value: object) -> None:
        """Runs outlive their job."""

    def has_run(self, run_id: str) -> bool:
        return run_id in RUNS

    def run(self, run_id: str) -> TrackedRun:
        return RUNS[run_id]

    def matching(self, prefix: str) -> tuple[TrackedRun, ...]:
        return tuple(run for run_id, run in RUNS.items() if run_id.startswith(prefix))

    def children(self, _parent: str) -> tuple[TrackedRun, ...]:
        return ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runs": ["aa", "zz"]}, "runs='zz': no run of sqlite"),
        ({"runs": ["aa", "f" * 32]}, f"runs='{'f' * 32}': no run of sqlite"),
        ({"runs": ["aa", "a"]}, "runs='a' begins the ids of 2 runs"),
        ({"sweep": "zz"}, "sweep='zz': no run of sqlite"),
        ({"sweep": "f" * 32}, f"sweep='{'f' * 32}': no run of sqlite"),
        ({"sweep": "a"}, "sweep='a' begins the ids of 2 runs"),
        ({"sweep": "aa"}, "sweep='aa' is the MLflow run"),
        ({"baseline": "zz", "candidate": "aa"}, "baseline='zz': no run of sqlite"),
        ({"baseline": "aa", "candidate": "zz"}, "candidate='zz': no run of sqlite"),
        ({"baseline": "aa", "candidate": "ab"}, "candidate='ab' is the MLflow run"),
    ],
)
def test_the_key_that_was_given_is_named(given: dict[str, str], said: str) -> None:
    asked = {"runs": [], "sweep": "", "baseline": "", "candidate": "", **given}
    with pytest.raises(InputError) as caught:
        select(cast("Tracker", Store()), "x", **asked, limits={})
    assert str(caught.value).startswith(said)


def test_runs_there_are_to_choose_from_are_named() -> None:
    runs = [TrackedRun(f"{number:032x}"[::-1], f"trial{number}", "FINISHED", {TAG_KIND: "train"}) for number in range(9)]
    tracker = SimpleNamespace(uri="sqlite:////x", recent=lambda kind: tuple(runs) if kind == "train" else ())
    named = r"runs=\[a,b\].*The newest finished runs: 00000000 \(train, trial0\), 10000000 \(train, trial1\)"
    with pytest.raises(InputError, match=named) as given:
        select(tracker, ExperimentSpec().name, (), "", "", "", {})
    assert "trial4" not in str(given.value)
    empty = SimpleNamespace(uri="sqlite:////x", recent=lambda _: ())
    with pytest.raises(InputError, match=r"There is no finished run at sqlite:////x yet"):
        select(empty, ExperimentSpec().name, (), "", "", "", {})
