"""The gate before every job: what the plan says cannot work, or exceeds the budget, is refused before anything is started or rented.

Pure decisions over what is on this machine. On a CPU the exact rules alone decide: it has no figures. Of a model that is not here
nothing is known until it is; `trial/trial.py` asks again with the model's architecture and the data's rows.
"""

from dataclasses import replace

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.errors import RejectedError
from crossmesh.plan.model import known_architecture
from crossmesh.plan.planner import Planner
from crossmesh.plan.point import TrainingPoint, training_point
from crossmesh.plan.serving.forecast import ServingForecast, serving_forecast
from crossmesh.plan.serving.point import serving_point
from crossmesh.plan.training.exact import broken_rules, broken_serving_rules
from crossmesh.plan.training.forecast import Forecast

_ALL_THE_SAME = " plan.gate=false starts it all the same."


def gate_training(spec: ExperimentSpec, planner: Planner) -> Forecast | None:
    """Refuse the training run of `spec` when its plan does not work.

    Returns the plan; None on a CPU, or where the model's architecture is not known yet. Raises `RejectedError` with every reason and the
    nearest run that fits, `InputError` for a model that cannot be.
    """
    architecture = known_architecture(spec.model, spec.storage.path / "cache")
    return gate_point(spec, training_point(spec, architecture), planner) if architecture else None


def announced(spec: ExperimentSpec, planned: Forecast) -> str:
    """What a job says of its plan before it starts."""
    if spec.hardware.emulated:
        return f"{spec.hardware.name} is emulated on CPU devices: this run has no price, and its speed says nothing of that hardware."
    return planned.text


def gate_point(spec: ExperimentSpec, point: TrainingPoint, planner: Planner) -> Forecast | None:
    """The same for the `point` that `spec` comes to."""
    broken = broken_rules(point)
    if point.slice.chip is None:
        _refuse("train", spec, broken, "")
        return None
    planned = planner.planned(point)
    if broken or spec.plan.gate:
        _refuse("train", spec, planned.reasons, planned.nearest, "" if broken else _ALL_THE_SAME)
    return planned


def gate_serving(spec: ExperimentSpec, planner: Planner) -> ServingForecast | None:
    """Refuse the engine of `spec` when it cannot hold its model and one sequence of `serve.max_model_len`; otherwise as `gate_training`."""
    if spec.serve.pp > 1 or known_architecture(spec.model, spec.storage.path / "cache") is None:
        return None  # The plan knows no pipeline stages.
    point = replace(serving_point(spec), prompt=spec.serve.max_model_len - 1, output=1)
    broken = broken_serving_rules(point)
    if point.slice.chip is None:
        _refuse("serve", spec, broken, "")
        return None
    planned = serving_forecast(point, spec.plan, planner.today)
    if broken or spec.plan.gate:
        _refuse("serve", spec, planned.reasons, planned.nearest, "" if broken else _ALL_THE_SAME)
    return planned


def _refuse(workload: str, spec: ExperimentSpec, reasons: tuple[str, ...], nearest: str, otherwise: str = "") -> None:
    if reasons:
        fits = f" Nearest that fits: {nearest}." if nearest else ""
        what = f"{spec.name} does not {workload} on hardware={spec.hardware.name}"
        raise RejectedError(f"{what}: {' '.join(reasons)}{fits}{otherwise}")
