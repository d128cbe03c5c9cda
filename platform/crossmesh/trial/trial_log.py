"""What is tracked of a trial: its parameters, its events as metrics, its totals."""

from dataclasses import fields
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.metrics import (
    FINAL_LOSS,
    GRAD_NORM,
    LEARNING_RATE,
    LOSS_TOKENS,
    MISSING_SLICES,
    PACKING_EFFICIENCY,
    PADDED_TOKENS_PER_S,
    RENTED,
    SLICES,
    TOKENS,
    TOKENS_PER_S,
    USD,
    WALL_CLOCK,
    added_totals,
)
from crossmesh.plan.training.forecast import Forecast
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import LoadEvent, StepEvent, SystemEvent
from crossmesh.train.launch import TrainResult
from crossmesh.trial.hooks import Hook


class TrialLog(Hook):
    """Puts what training says into a run."""

    def __init__(self, tracker: Tracker, run_id: str, slices: int) -> None:
        """`slices` is `mesh.dcn`."""
        self._tracker = tracker
        self._run_id = run_id
        self._slices = slices
        self._tokens = {0: 0}
        """Real tokens trained on after each step; the steps of earlier starts are told again, so that there is no gap."""

    def on_system(self, event: SystemEvent) -> None:
        """Log what a node is busy with."""
        self._tracker.system(self._run_id, event.node, event.values, event.at)

    def on_load(self, event: LoadEvent) -> None:
        """Log what else kept the machine busy."""
        self._tracker.metrics(self._run_id, {f"load/{key}": value for key, value in event.values.items()}, max(self._tokens))

    def on_step(self, event: StepEvent) -> None:
        """Log a step; what the run has already is not logged again."""
        self._tokens[event.step] = self._tokens[event.step - 1] + event.real_tokens
        values = {
            FINAL_LOSS.step: event.loss,
            GRAD_NORM.step: event.grad_norm,
            LEARNING_RATE.step: event.learning_rate,
            TOKENS.step: self._tokens[event.step],
            TOKENS_PER_S.step: event.tokens_per_s,
            PADDED_TOKENS_PER_S.step: event.padded_tokens_per_s,
            PACKING_EFFICIENCY.step: event.packing_efficiency,
            WALL_CLOCK.step: event.seconds,
            **{f"train/{name}": value for name, value in event.objective.items()},
            **({SLICES.step: self._slices - event.missing_slices} if self._slices > 1 else {}),
        }
        self._tracker.metrics(self._run_id, values, event.step)


def params_of(spec: ExperimentSpec) -> dict[str, Any]:
    """The spec's keys, and beside them what follows from several: the mesh and the micro-batch as they are."""
    shape = spec.mesh_shape
    return {
        **{one.name: getattr(spec, one.name) for one in fields(spec)},
        "mesh_shape": shape,
        "micro_batch": spec.micro_batch,
        "attention": spec.attention,
    }


def totals_of(spec: ExperimentSpec, result: TrainResult, planned: Forecast | None) -> dict[str, float]:
    """What the whole run measured, its price at the list's, and what installed packages add; `report/trained_run.py` reads it."""
    price = planned.price if planned else None
    slices = spec.mesh.dcn
    usd = {USD.key: price.usd_per_hour * slices * result.rented_s(slices) / 3600} if price else {}
    totals = usd | {
        FINAL_LOSS.key: result.final_loss,
        TOKENS_PER_S.key: result.tokens_per_s,
        PADDED_TOKENS_PER_S.key: result.padded_tokens_per_s,
        WALL_CLOCK.key: result.seconds,
        LOSS_TOKENS.key: result.loss_tokens,
        **({RENTED.key: result.rented_s(slices), MISSING_SLICES.key: result.steady_missing_slices} if slices > 1 else {}),
    }
    return totals | added_totals({**totals, TOKENS.key: float(sum(event.real_tokens for event in result.history))})
