"""Makes a sweep of finished training runs in a scratch MLflow store, thousands of them in minutes.

The first runs, one of each system, are made through the tracker with the records of real specs. The others are copies of those in the
store's tables, each with a science, an identity, metrics and records of its own. Only the metrics are made up.
"""

import json
import math
import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.fingerprint import (
    TRAINED_RECORD,
    Record,
    ScienceFacts,
    digest_of,
    science_record,
    system_record,
    trained_record,
    trial_identity,
)
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.config.training import HardwareSpec, MeshSpec
from crossmesh.console import Stage
from crossmesh.files import digest_text, write_json
from crossmesh.metrics import FINAL_LOSS, PADDED_TOKENS_PER_S, TOKENS_PER_S
from crossmesh.track.flatten import flatten
from crossmesh.track.mlflow.client import store_address
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_IDENTITY, TAG_SCIENCE, TAG_TRAINED
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker

_BATCH = 32
_RATES = 7
_SPEEDS = 53
_LOSS, _SPEED, _PADDED = FINAL_LOSS.step, TOKENS_PER_S.step, PADDED_TOKENS_PER_S.step
_BESIDE = f"adapter/{TRAINED_RECORD}"
_COPIED = ("params", "tags", "metrics", "latest_metrics")


def make_sweep(spec: ExperimentSpec, storage: Path, runs: int, steps: int, stage: Stage, rates: Sequence[float] = ()) -> str:
    """Make a sweep of `runs` finished training runs of `steps` steps in an MLflow store under `storage` and return the id of its parent.

    A run has the `rates`' next learning rate, which changes what is learned, and the next of 32 systems, which change the speed. Without
    `rates` there are as many as no two runs learn the same on the same system.
    """
    where = StorageSpec(str(storage))
    tracker = open_tracker(TrackingSpec(), where)
    parent = tracker.start("sweep", "sweep")
    spec = replace(spec, batch=replace(spec.batch, size=_BATCH, micro=1), optim=replace(spec.optim, steps=steps))
    systems = tuple(_systems(spec))
    rates = rates or tuple(1e-4 + 1e-6 * number for number in range(max(_RATES, -(-runs // len(systems)) | 1)))  # Odd: no pair comes twice.
    sciences = {rate: _science(_with_rate(spec, rate)) for rate in rates}
    provenance, made = gather_provenance(), []
    for number in range(min(runs, len(systems))):
        rate = rates[number % len(rates)]
        made.append(_make_run(tracker, _with_rate(systems[number], rate), sciences[rate], provenance, parent, number))
        stage.progress("runs", number + 1, runs)
    tracker.finish(parent)
    database = store_address(TrackingSpec(), where).database
    if database is None:
        raise AssertionError("a store under a storage root is a sqlite file")
    with closing(sqlite3.connect(database)) as store:
        store.executescript("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF")
        for number in range(len(made), runs):
            rate, system = rates[number % len(rates)], systems[number % len(systems)]
            _copy_run(store, made[number % len(made)], number, _with_rate(system, rate), sciences[rate])
            stage.progress("runs", number + 1, runs)
        store.commit()
    return parent


def _with_rate(spec: ExperimentSpec, rate: float) -> ExperimentSpec:
    return replace(spec, optim=replace(spec.optim, learning_rate=rate))


def _systems(spec: ExperimentSpec) -> Iterator[ExperimentSpec]:
    """Points that learn the same."""
    for mesh, micro, slice_ in product(range(4), (1, 2, 4, 8), ("tpu_v5p_8", "gpu_2xh100")):
        tp = min(2 ** (mesh % 3), 2 if slice_.startswith("gpu") else 4)
        yield replace(
            spec,
            hardware=HardwareSpec(name=slice_),
            mesh=MeshSpec(fsdp=-1, tp=tp),
            batch=replace(spec.batch, micro=micro),
            backend=replace(spec.backend, remat="layer" if mesh == 3 else "none"),
        )


def _science(spec: ExperimentSpec) -> Record:
    rows = tuple(tuple(f"row-{step * _BATCH + row}" for row in range(_BATCH)) for step in range(spec.optim.steps))
    lora = {"modules": [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(30) for name in "qkvo"], "rank": spec.lora.rank}
    return science_record(spec, ScienceFacts("a" * 64, "d" * 64, lora, rows))


def _rate_of(number: int) -> float:
    """The speed of a run follows from its number."""
    return 1000.0 + 7 * (number % _SPEEDS)


def _make_run(tracker: Tracker, spec: ExperimentSpec, science: Record, provenance: Any, parent: str, number: int) -> str:
    system = system_record(spec)
    run = tracker.start(spec.backend_name, "train", parent=parent, identity=trial_identity(science, system), params=spec)
    tracker.records(run, science.contents, system.contents)
    tracker.provenance(run, provenance)
    beside = trained_record(science, system, digest_text(f"adapter {number}"))
    tracker.artifact_json(run, _BESIDE, beside)
    tracker.tags(run, {TAG_ADAPTER: beside["trained"], TAG_TRAINED: digest_of(beside)})
    rate = _rate_of(number)
    for step in range(1, spec.optim.steps + 1):
        speed = rate * (1 + 0.01 * math.sin(step + number))
        loss = 2.0 * math.exp(-step / 40) + 0.1 + spec.optim.learning_rate
        tracker.metrics(run, {_LOSS: loss, _SPEED: speed, _PADDED: 1.3 * speed}, step)
    tokens = 200 * _BATCH * spec.optim.steps
    rates = {"tokens_per_s_steady": rate, "padded_tokens_per_s_steady": 1.3 * rate}
    totals = {**rates, "final_loss": loss, "seconds": tokens / rate, "tokens": tokens, "loss_tokens": tokens // 5}
    tracker.metrics(run, {f"train/{name}": value for name, value in totals.items()}, spec.optim.steps)
    tracker.finish(run)
    return run


def _copy_run(store: sqlite3.Connection, of: str, number: int, spec: ExperimentSpec, science: Record) -> None:
    """Copy the run `of` in the tables, and its artifacts as links, with the science of `spec` and the speed of `number`."""
    run, system = uuid.uuid4().hex, system_record(spec)
    beside = trained_record(science, system, digest_text(f"adapter {number}"))
    (artifacts,) = store.execute("SELECT artifact_uri FROM runs WHERE run_uuid = ?", (of,)).fetchone()
    _insert(store, "runs", of, {"run_uuid": run, "artifact_uri": artifacts.replace(of, run)})
    for table in _COPIED:
        _insert(store, table, of, {"run_uuid": run})
    texts = [("params", "optim.learning_rate", flatten(spec.optim)["learning_rate"])]
    tags = {
        TAG_SCIENCE: science.digest,
        TAG_IDENTITY: trial_identity(science, system),
        TAG_ADAPTER: beside["trained"],
        TAG_TRAINED: digest_of(beside),
    }
    texts += [("tags", key, value) for key, value in tags.items()]
    for table, key, value in texts:
        store.execute(f"UPDATE {table} SET value = ? WHERE run_uuid = ? AND key = ?", (value, run, key))  # noqa: S608  # Tables of ours.
    (before,) = store.execute("SELECT value FROM params WHERE run_uuid = ? AND key = 'optim.learning_rate'", (of,)).fetchone()
    (speed,) = store.execute("SELECT value FROM latest_metrics WHERE run_uuid = ? AND key = 'train/tokens_per_s_steady'", (of,)).fetchone()
    faster, worse = _rate_of(number) / speed, spec.optim.learning_rate - float(before)
    for table in ("metrics", "latest_metrics"):
        update = f"UPDATE {table} SET value = {{}} WHERE run_uuid = ? AND key {{}}"  # noqa: S608  # Tables of ours.
        store.execute(update.format("value * ?", "LIKE '%tokens_per_s%'"), (faster, run))
        store.execute(update.format("value / ?", "= 'train/seconds'"), (faster, run))
        store.execute(update.format("value + ?", "IN ('train/loss', 'train/final_loss')"), (worse, run))
    _link_artifacts(Path(unquote(urlsplit(artifacts).path)), of, run, science, beside)


def _insert(store: sqlite3.Connection, table: str, of: str, changed: dict[str, str]) -> None:
    """Copy the rows that a table has of a run, some columns changed."""
    columns = [row[1] for row in store.execute(f"PRAGMA table_info({table})")]
    taken = ", ".join("?" if column in changed else f'"{column}"' for column in columns)
    values = [changed[column] for column in columns if column in changed]
    store.execute(f"INSERT INTO {table} SELECT {taken} FROM {table} WHERE run_uuid = ?", (*values, of))  # noqa: S608  # Tables of ours.


def _link_artifacts(folder: Path, of: str, run: str, science: Record, beside: Mapping[str, str]) -> None:
    """Give `run` the artifacts of `of`, as links, the record of its own science, one file for all that learned the same, and `beside`."""
    kept = folder.parents[1].with_name("sciences") / f"{science.digest}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        write_json(kept, science.contents)
    for file in folder.rglob("*"):
        target = Path(str(file).replace(of, run))
        if file.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.name == TRAINED_RECORD:
            target.write_text(json.dumps(beside))
        else:
            os.link(kept if file.name == "science.json" else file, target)
