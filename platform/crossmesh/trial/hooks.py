"""What follows a trial while it trains, in the process of the job: hooks, called one after another at every turn of it.

Ours tracks the run (`trial_log.py`); packages add theirs by entry points in `crossmesh.hooks`, and `hooks=[name]` calls them.
"""

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import HOOKS
from crossmesh.errors import CrossmeshError
from crossmesh.train.events import CheckpointEvent, EvaluationEvent, Event, LoadEvent, OnEvent, StepEvent, SystemEvent
from crossmesh.train.launch import TrainResult


@dataclass(frozen=True)
class StartedTrial:
    """A trial that begins, or goes on after an interruption."""

    spec: ExperimentSpec
    run_id: str
    """Of its tracked run."""
    folder: Path
    """Where its checkpoints, its result and its adapter are."""


class Hook:
    """Follows a trial. A method that is not overridden does nothing; what one raises stops the training, with a checkpoint.

    A trial that goes on after an interruption starts again, and is told of the steps of earlier attempts again, each step once.
    """

    def on_start(self, trial: StartedTrial) -> None:
        """Training is about to be launched."""

    def on_step(self, event: StepEvent) -> None:
        """One optimizer step is done."""

    def on_evaluation(self, event: EvaluationEvent) -> None:
        """The loss on rows that are not trained on is known."""

    def on_checkpoint(self, event: CheckpointEvent) -> None:
        """A checkpoint is complete."""

    def on_system(self, event: SystemEvent) -> None:
        """A node was looked at: its accelerators, processors, memory."""

    def on_load(self, event: LoadEvent) -> None:
        """What else kept the machine busy while steps were taken."""

    def on_end(self, result: TrainResult | None) -> None:
        """The trial is done; None where it failed or was interrupted."""


def make_hooks(spec: ExperimentSpec) -> dict[str, Hook]:
    """Make the hooks that `spec` names. Raises `CrossmeshError` where one cannot be made."""
    made: dict[str, Hook] = {}
    for name in spec.hooks:
        kind = HOOKS.load(name)
        try:
            made[name] = kind()
        except Exception as error:
            raise _failed(name, "__init__", error) from error
    return made


@dataclass
class Hooks:
    """Hooks by name, called in their order."""

    hooks: Mapping[str, Hook]
    _last_step: int = field(default=0, init=False)

    def start(self, trial: StartedTrial) -> None:
        """Call `on_start`."""
        self._call("on_start", trial)

    def end(self, result: TrainResult | None) -> None:
        """Call `on_end`; an error of a hook does not hide why a trial without a result ended."""
        with suppress(CrossmeshError) if result is None else nullcontext():
            self._call("on_end", result)

    def before(self, on_event: OnEvent) -> OnEvent:
        """Call the hooks with an event, then pass it on."""

        def called(event: Event) -> None:
            match event:
                case StepEvent():
                    if event.step > self._last_step:
                        self._last_step = event.step
                        self._call("on_step", event)
                case EvaluationEvent():
                    self._call("on_evaluation", event)
                case CheckpointEvent():
                    self._call("on_checkpoint", event)
                case SystemEvent():
                    self._call("on_system", event)
                case LoadEvent():
                    self._call("on_load", event)
            on_event(event)

        return called

    def _call(self, method: str, value: object) -> None:
        for name, hook in self.hooks.items():
            try:
                getattr(hook, method)(value)
            except CrossmeshError:
                raise
            except Exception as error:
                raise _failed(name, method, error) from error


def _failed(name: str, where: str, error: Exception) -> CrossmeshError:
    return CrossmeshError(
        f"The hook {name!r} failed in {where}: {type(error).__name__}: {error}. Repair it, or leave it out of hooks=[...]; the same "
        "command continues from the last checkpoint."
    )
