"""What MLflow is told of a trial: its parameters, its events as metrics, its totals."""

from dataclasses import fields
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.plan.training.forecast import Forecast
from crossmesh.track.repeats import STEADY_MISSING
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import Event, LoadEvent, OnEvent, StepEvent, SystemEvent
from crossmesh.train.launch import TrainResult


class TrialLog:
    """Puts what training says into a run."""

    def __init__(self, tracker: Tracker, run_id: str, slices: int) -> None:
        """`slices` is `mesh.dcn`."""
        self._tracker = tracker
        self._run_id = run_id
        self._slices = slices
        self._tokens = {0: 0}
        """Real tokens trained on after each step; the steps of earlier starts are told again, so that there is no gap."""

    def before(self, on_event: OnEvent) -> OnEvent:
        """Log an event, then pass it on."""

        def logged(event: Event) -> None:
            if isinstance(event, StepEvent):
                self.step(event)
            elif isinstance(event, SystemEvent):
                self._tracker.system(self._run_id, event.node, event.values, event.at)
            elif isinstance(event, LoadEvent):
                self._tracker.metrics(self._run_id, {f"load/{key}": value for key, value in event.values.items()}, max(self._tokens))
            on_event(event)

        return logged

    def step(self, event: StepEvent) -> None:
        """Log a step; what the run has already is not logged again."""
        self._tokens[event.step] = self._tokens[event.step - 1] + event.real_tokens
        values = {
            "train/loss": event.loss,
            "train/grad_norm": event.grad_norm,
            "train/learning_rate": event.learning_rate,
            "train/tokens": self._tokens[event.step],
            "train/tokens_per_s": event.tokens_per_s,
            "train/padded_tokens_per_s": event.padded_tokens_per_s,
            "train/packing_efficiency": event.packing_efficiency,
            "train/step_seconds": event.seconds,
            **({"train/slices": self._slices - event.missing_slices} if self._slices > 1 else {}),
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
    """What the whole run measured, and its price at the list's; `report/stored.py` reads it again."""
    price = planned.price if planned else None
    slices = spec.mesh.dcn
    usd = {"train/usd": price.usd_per_hour * slices * result.rented_s(slices) / 3600} if price else {}
    return usd | {
        "train/final_loss": result.final_loss,
        "train/tokens_per_s_steady": result.tokens_per_s,
        "train/padded_tokens_per_s_steady": result.padded_tokens_per_s,
        "train/seconds": result.seconds,
        "train/loss_tokens": result.loss_tokens,
        **({"train/rented_seconds": result.rented_s(slices), STEADY_MISSING: result.steady_missing_slices} if slices > 1 else {}),
    }
