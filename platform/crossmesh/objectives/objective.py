"""The interface of an objective: rows to arrays, arrays to a loss on either backend, and what of it is science.

Nothing here imports a framework: the driver asks an objective for its record, so `jax` and `torch` are imported within `loss_jax` and
`loss_torch`, if at all.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, Protocol

from crossmesh.config.objective import OBJECTIVES, ObjectiveSpec
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.data.packing import StepPlan, build_batch

Array = Any
"""Of JAX (traced) or of torch."""
LOSS = "loss"
"""Key of the sum that is minimized, among those that an objective returns."""


class TokenLosses(Protocol):
    """Arithmetic on float32 arrays, one value a target token, that both frameworks can do: it is differentiated by them."""

    def __call__(self, nll: Array, normalizer: Array) -> Mapping[str, Array]:
        """Return the loss of each target under `loss`, and further values by the names in `Objective.metrics`.

        `nll` is the negative log-likelihood of the target in nats, `normalizer` the logarithm of the softmax's denominator.
        """
        ...


class Forward(Protocol):
    """The model applied to one micro-batch; an array is computed when it is asked for."""

    def token_sums(self, token_losses: TokenLosses) -> Mapping[str, Array]:
        """Sum each value over the targets that carry loss, with logits a few rows at a time and the gradient in the same pass."""
        ...

    def hidden(self) -> Array:
        """The decoder's output, [sequences, length, hidden]; on torch those of this rank."""
        ...

    def output_weight(self) -> Array:
        """The output projection, [vocabulary, hidden]; on torch this rank's part of the vocabulary."""
        ...


class Objective(ABC):
    """What a training minimizes. One instance serves a process; a dataclass's fields are the options that `objective.options` gives."""

    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of what the losses return beside `loss`; logged for every step as `train/<name>`, divided as the loss is."""

    def science(self) -> Mapping[str, Any]:
        """What decides what is learned, plain JSON, for the science record: the options, unless overridden."""
        return asdict(self) if is_dataclass(self) else {}

    @abstractmethod
    def collate(self, plan: StepPlan, rows: Sequence[Row], sequences: int, length: int, pad_id: int) -> PackedBatch:
        """Make the arrays of one step (`data.packing.build_batch` has the arguments)."""

    @abstractmethod
    def weight(self, batch: PackedBatch) -> float:
        """What the summed loss of a step is divided by; a positive number, the same however the step is split."""

    @abstractmethod
    def loss_jax(self, forward: Forward, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the summed `loss` of a micro-batch and the summed `metrics`, scalars; `batch` has its arrays, [sequences, length]."""

    @abstractmethod
    def loss_torch(self, forward: Forward, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """As `loss_jax`, of this rank's sequences; the arrays of `batch` are numpy's, on the host."""


class TokenObjective(Objective):
    """An objective that is a sum over target tokens: one definition for both backends."""

    @abstractmethod
    def token_losses(self, nll: Array, normalizer: Array) -> Mapping[str, Array]:
        """As `TokenLosses`."""

    def collate(self, plan: StepPlan, rows: Sequence[Row], sequences: int, length: int, pad_id: int) -> PackedBatch:
        """Lay the rows out with the loss masks that they have."""
        return build_batch(plan, rows, sequences, length, pad_id)

    def weight(self, batch: PackedBatch) -> float:
        """The loss is the mean over the targets of a step."""
        return batch.loss_tokens

    def loss_jax(self, forward: Forward, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """Sum `token_losses`."""
        del batch
        return forward.token_sums(self.token_losses)

    def loss_torch(self, forward: Forward, batch: Mapping[str, Array]) -> Mapping[str, Array]:
        """Sum `token_losses`."""
        del batch
        return forward.token_sums(self.token_losses)


def make_objective(spec: ObjectiveSpec) -> Objective:
    """Return the objective that `spec` names. Raises `InputError` for options that it does not have."""
    objective: Objective = OBJECTIVES.make("objective.name", spec.name, "objective.options", spec.options)
    return objective


def objective_record(spec: ObjectiveSpec) -> dict[str, Any]:
    """What of the objective is science; the default adds nothing, so records without it are records of that."""
    return {} if spec.name == ObjectiveSpec.name else {"name": spec.name, **make_objective(spec).science()}
