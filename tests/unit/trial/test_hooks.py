"""Hooks of a trial: called in order at every turn, each step once, and an error names the hook."""

from pathlib import Path
from typing import Any, cast

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import HOOKS
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.train.events import CheckpointEvent, EvaluationEvent, Event, StageEvent, StepEvent
from crossmesh.train.launch import TrainResult
from crossmesh.trial.hooks import Hook, Hooks, StartedTrial, make_hooks
from hook_package import install


def step(number: int) -> StepEvent:
    return StepEvent(number, 3, 1.0, 1.0, 1e-3, 4, 8, 8, 0.1, first=False)


class Kept(Hook):
    def __init__(self, name: str, kept: list[Any]) -> None:
        self.name, self.kept = name, kept

    def on_start(self, trial: StartedTrial) -> None:
        self.kept.append((self.name, trial.run_id))

    def on_step(self, event: StepEvent) -> None:
        self.kept.append((self.name, event.step))

    def on_evaluation(self, event: EvaluationEvent) -> None:
        self.kept.append((self.name, event.loss))

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        self.kept.append((self.name, event.folder))

    def on_end(self, result: Any) -> None:
        self.kept.append((self.name, result))


def test_hooks_are_called_in_their_order_and_before_who_listens() -> None:
    kept: list[Any] = []
    hooks = Hooks({"a": Kept("a", kept), "b": Kept("b", kept), "silent": Hook()})
    hear = hooks.before(lambda event: kept.append(type(event).__name__))
    events: tuple[Event, ...] = (StageEvent("x"), step(1), step(2), step(1), step(3), EvaluationEvent(3, 0.5), CheckpointEvent(3, "there"))
    hooks.start(StartedTrial(ExperimentSpec(), "run", Path()))
    for event in events:
        hear(event)
    hooks.end(None)
    own = ["run", 1, 2, 3, 0.5, "there", None]
    assert [value for name, value in (one for one in kept if isinstance(one, tuple)) if name == "a"] == own
    assert kept[:2] == [("a", "run"), ("b", "run")]
    assert kept[2:6] == ["StageEvent", ("a", 1), ("b", 1), "StepEvent"]
    assert [one for one in kept if isinstance(one, str)] == [type(event).__name__ for event in events]


def test_what_a_hook_raises_is_one_message_that_names_it() -> None:
    class Broken(Hook):
        def on_step(self, event: StepEvent) -> None:
            raise KeyError("webhook")

    with pytest.raises(CrossmeshError, match=r"The hook 'pager' failed in on_step: KeyError: 'webhook'\. Repair it"):
        Hooks({"pager": Broken()}).before(lambda _: None)(step(1))


def test_an_error_at_the_end_does_not_hide_why_a_trial_ended() -> None:
    class Broken(Hook):
        def on_end(self, result: Any) -> None:
            raise KeyError("webhook")

    Hooks({"pager": Broken()}).end(None)
    with pytest.raises(CrossmeshError, match="failed in on_end"):
        Hooks({"pager": Broken()}).end(cast("TrainResult", object()))


def test_hooks_of_a_package_are_made_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"hooks=.*lines"):
        ExperimentSpec(hooks=("lines",))
    install(tmp_path, monkeypatch)
    spec = ExperimentSpec(hooks=("lines",))
    assert type(make_hooks(spec)["lines"]).__name__ == "Lines"
    with pytest.raises(InputError, match="each name once"):
        ExperimentSpec(hooks=("lines", "lines"))
    monkeypatch.setattr(HOOKS.load("lines"), "__init__", lambda _: 1 / 0)
    with pytest.raises(CrossmeshError, match="The hook 'lines' failed in __init__: ZeroDivisionError"):
        make_hooks(spec)
