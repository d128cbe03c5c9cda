"""What a training run says while it runs, as plain values that also travel as lines of JSON from the worker to the driver."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args


@dataclass(frozen=True)
class StageEvent:
    """A line for the person who waits: what happens now."""

    text: str


@dataclass(frozen=True)
class StartEvent:
    """An attempt begins: from now on hardware is asked for, and paid for."""

    text: str


@dataclass(frozen=True)
class WarningEvent:
    """Something went wrong and was dealt with; the person should know."""

    text: str


@dataclass(frozen=True)
class StepEvent:
    """One optimizer step is done."""

    step: int
    """Steps done, this one included: 1 to `steps`."""
    steps: int
    loss: float
    """What the objective minimizes; of `sft` the mean over the step's loss tokens, in nats."""
    grad_norm: float
    """Global L2 norm before clipping."""
    learning_rate: float
    loss_tokens: int
    real_tokens: int
    """Tokens that are not padding."""
    padded_tokens: int
    """Tokens that were computed: real ones and padding."""
    seconds: float
    """Wall clock of the step, batch building included, checkpoints not."""
    first: bool
    """First step after a start: it also compiles and warms up."""
    missing_slices: int = 0
    """Slices of `mesh.dcn` that were not there (`mesh.min_dcn`)."""
    objective: Mapping[str, float] = field(default_factory=dict)
    """What the objective says beside its loss, by name (`Objective.metrics`)."""

    @property
    def record(self) -> dict[str, Any]:
        """As a JSON value; an objective that says nothing beside its loss leaves nothing."""
        return {name: value for name, value in asdict(self).items() if name != "objective" or value}

    @property
    def tokens_per_s(self) -> float:
        """Real tokens per second."""
        return self.real_tokens / self.seconds

    @property
    def padded_tokens_per_s(self) -> float:
        """Computed tokens per second."""
        return self.padded_tokens / self.seconds

    @property
    def packing_efficiency(self) -> float:
        """Share of the computed tokens that is not padding."""
        return self.real_tokens / self.padded_tokens


@dataclass(frozen=True)
class EvaluationEvent:
    """Loss on rows that are not trained on, after `step` steps, in nats per loss token."""

    step: int
    loss: float


@dataclass(frozen=True)
class CheckpointEvent:
    """The state after `step` steps is safe on disk."""

    step: int
    folder: str


@dataclass(frozen=True)
class SystemEvent:
    """What a node of the run is busy with (`track/system.py`)."""

    node: str
    """`node_0`, `node_1`, ... in Ray Train's order."""
    at: float
    """Seconds since 1970."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class LoadEvent:
    """What else kept the machine busy while the steps were taken (`track/load.py`)."""

    values: Mapping[str, float]


Event = StageEvent | StartEvent | WarningEvent | StepEvent | EvaluationEvent | CheckpointEvent | SystemEvent | LoadEvent
OnEvent = Callable[[Event], None]

_KINDS: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def to_json(event: Event) -> dict[str, Any]:
    """Return `event` as a JSON value that names its kind."""
    return {"kind": type(event).__name__, **(event.record if isinstance(event, StepEvent) else asdict(event))}


def from_json(value: Mapping[str, Any]) -> Event:
    """Return the event that `to_json` made `value` of."""
    fields = dict(value)
    return _KINDS[fields.pop("kind")](**fields)
