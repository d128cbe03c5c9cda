"""Prepared views of an experiment in MLflow's UI: which columns and which charts, as the state that its own Share button stores.

MLflow keeps a shared view as a tag of the experiment, with the page's state as JSON (read from the UI of MLflow 3.17), and opens it by
name in the address. Pure: `Tracker.prepare_views` stores what is made here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossmesh.metrics import FINAL_LOSS, GRAD_NORM, TOKENS, TOKENS_PER_S, USD, WALL_CLOCK

_TAG = "mlflow.sharedViewState."
NOTE_TAG = "mlflow.note.content"
NOTE = """Runs of crossmesh. Tags say what a run is: `crossmesh.kind`; `crossmesh.science` and `crossmesh.system` are the fingerprints of
what was learned and of how fast: speed may be compared where the first is equal. `crossmesh.adapter`, `crossmesh.base` and
`crossmesh.data` lead from data to adapter, server and evaluation. `crossmesh ui` prints the addresses of the prepared views;
`crossmesh compare` decides."""
_SECTION = "crossmesh"
_MESH = ("mesh_shape.dcn", "mesh_shape.data", "mesh_shape.fsdp", "mesh_shape.tp", "micro_batch")


@dataclass(frozen=True)
class View:
    """A prepared view."""

    key: str
    title: str
    kind: str
    """The kind of runs that it shows."""
    params: tuple[str, ...]
    metrics: tuple[str, ...]
    tags: tuple[str, ...]
    charts: tuple[Mapping[str, Any], ...]
    ascending: bool = True
    """Whether runs with less of the first metric come first."""

    @property
    def filter(self) -> str:
        """Which runs it shows, in MLflow's search language (which takes no `IN` for tags)."""
        return f"tags.`crossmesh.kind` = '{self.kind}'"

    @property
    def tag(self) -> tuple[str, str]:
        """Key and value of the experiment's tag that holds it."""
        return f"{_TAG}{self.key}", json.dumps(self._state(), separators=(",", ":"))

    def path(self, experiment_id: str) -> str:
        """What follows MLflow's address."""
        return f"/#/experiments/{experiment_id}/runs?viewStateShareKey={self.key}&compareRunsMode=CHART"

    def _state(self) -> dict[str, Any]:
        columns = [("attributes", "Created"), ("attributes", "Duration"), *(("tags", name) for name in self.tags)]
        columns += [("params", name) for name in self.params] + [("metrics", name) for name in self.metrics]
        charts = [{"uuid": f"{self.key}-{index}", "metricSectionId": _SECTION, **chart} for index, chart in enumerate(self.charts)]
        return {
            "searchFilter": self.filter,
            # Ordered by their time, runs lie below their parents, and MLflow draws no charts of those whose parent is closed.
            "orderByKey": f"metrics.`{self.metrics[0]}`",
            "orderByAsc": self.ascending,
            "selectedColumns": [f"{scope}.`{name}`" for scope, name in columns],
            "runsHiddenMode": "FIRST_20_RUNS",
            "compareRunCharts": charts,
            "compareRunSections": [{"uuid": _SECTION, "name": self.title, "display": True, "isReordered": True}],
            "isAccordionReordered": True,  # Otherwise the UI sorts our section by name among those that it makes.
        }


def line_chart(title: str, metric: str, over: str = "") -> dict[str, Any]:
    """A curve by step, or over another metric of the same steps."""
    axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": over} if over else {"xAxisKey": "step"}
    return {**_chart("LINE", title), "metricKey": metric, "selectedMetricKeys": [metric], "useGlobalXaxisKey": False, **axis}


def bar(title: str, metric: str) -> dict[str, Any]:
    """One bar a run: the last value."""
    return {**_chart("BAR", title), "metricKey": metric, "runsCountToCompare": 20}


def scatter(title: str, x: str, y: str) -> dict[str, Any]:
    """One point a run, over two metrics."""
    axes = {name: {"key": key, "type": "METRIC"} for name, key in (("xaxis", x), ("yaxis", y))}
    return {**_chart("SCATTER", title), **axes, "runsCountToCompare": 100}


def parallel(title: str, params: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """One thread a run through its parameters to its metrics."""
    return {**_chart("PARALLEL", title), "selectedParams": list(params), "selectedMetrics": list(metrics), "showAllRuns": True}


def _chart(kind: str, title: str) -> dict[str, Any]:
    return {"type": kind, "displayName": title, "deleted": False, "isGenerated": False}


_SPEED, _LOSS, _USD = TOKENS_PER_S.key, FINAL_LOSS.key, USD.key
_PASS = tuple(f"eval/{split}/pass_at_1" for split in ("heldout", "hard", "spec_to_rtl", "code_complete"))

VIEWS = (
    View(
        "crossmesh-training",
        "Training: loss by tokens, tokens/s by mesh, cost by quality",
        "train",
        ("backend.name", "hardware.name", *_MESH, "packing.mode"),
        (_LOSS, _SPEED, WALL_CLOCK.key, _USD, TOKENS.step),
        ("crossmesh.science", "crossmesh.system"),
        (
            line_chart("Loss by tokens", FINAL_LOSS.step, TOKENS.step),
            bar("Tokens/s", _SPEED),
            parallel("Tokens/s by mesh and micro-batch", _MESH, (_SPEED,)),
            scatter("Cost by quality: USD and final loss", _USD, _LOSS),
            line_chart("Tokens/s by step", TOKENS_PER_S.step),
            line_chart("Gradient norm by tokens", GRAD_NORM.step, TOKENS.step),
        ),
    ),
    View(
        "crossmesh-evaluation",
        "Evaluation: quality by model",
        "evaluate",
        ("eval.task", "eval.temperature", "eval.samples"),
        (*_PASS, "eval/seconds", "eval/completion_tokens"),
        ("crossmesh.adapter", "crossmesh.base", "crossmesh.server"),
        (*(bar(f"pass@1, {key.split('/')[1]}", key) for key in _PASS), scatter("Time and pass@1", "eval/seconds", _PASS[0])),
        ascending=False,
    ),
)
