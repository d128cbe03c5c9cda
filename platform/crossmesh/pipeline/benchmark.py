"""A benchmark from spec to tracked result: finds or starts the server, measures what is missing, keeps files and an MLflow run."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group

from crossmesh.bench.cells import Cell, cells_of
from crossmesh.bench.endpoint import fingerprint_of, server_at
from crossmesh.bench.load import LoadGenerator, Progress, Target
from crossmesh.bench.plausible import Engines
from crossmesh.bench.results import Outcomes, as_json, metrics_of, render, write_files
from crossmesh.bench.runner import Bench, CellResult, Found, Terms
from crossmesh.bench.store import identity_of
from crossmesh.cluster import ray_session, require_chips
from crossmesh.console import Console, Stage
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text, read_json, write_json
from crossmesh.hardware.devices import Tpu
from crossmesh.pipeline.evaluation import BASE, served_base
from crossmesh.pipeline.serving import named_adapters
from crossmesh.plan.model import known_architecture
from crossmesh.plan.serving_point import serving_point
from crossmesh.serve.adapters import ServedAdapter, ServedBase
from crossmesh.serve.app import Server, start_server
from crossmesh.serve.engine import EngineSettings, engine_settings
from crossmesh.serve.record import engine_record
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.sweep.trial import fetch
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracker import TAG_ADAPTER, TAG_BASE, TAG_SERVER, Tracker

_SERVER_FILE = "server.json"


@dataclass(frozen=True)
class Done:
    """A finished benchmark."""

    values: Mapping[str, Any]
    """For a script."""
    shown: Group
    """For a person."""
    folder: Path
    """Its files."""


@dataclass(frozen=True)
class Subject:
    """What is measured."""

    described: Mapping[str, Any]
    """What makes it this server and no other; known before it runs."""
    target: Callable[[], Target]
    """Starts it, if it is not there yet."""
    tokenizer: Path
    longest: int


@dataclass(frozen=True)
class OwnServer:
    """The server that the experiment describes, not started yet."""

    spec: ExperimentSpec
    base: ServedBase
    adapters: tuple[ServedAdapter, ...]
    sources: tuple[Path, ...]
    settings: EngineSettings

    @property
    def described(self) -> dict[str, Any]:
        """What makes it this server and no other."""
        adapters = {adapter.name: str(adapter.folder) for adapter in self.adapters}
        return {
            "weights": self.base.weights_digest,
            "adapters": adapters,
            "hardware": self.spec.hardware.name,
            **engine_record(self.settings),
        }

    def start(self, console: Console) -> Server:
        """Start it."""
        with console.stage("serve") as stage:
            server = start_server(self.spec, self.base, self.adapters, sources=self.sources, on_progress=stage.say)
            stage.say(f"ready at {server.base_url} after {server.start_s:.0f} s")
        return server


def benchmark(spec: ExperimentSpec, console: Console) -> Done:
    """Measure every cell of `spec.bench` that is not measured yet; the server is started only when there is one.

    Raises `InputError` for a server that does not answer or that the spec cannot be, `CrossmeshError` when server or client die: what was
    measured is kept.
    """
    tracker = Tracker(spec.tracking, spec.storage)
    with ExitStack() as stack:
        subject = _url_subject(spec, console) if spec.bench.url else _own_subject(own_server(spec, console, stack), console, stack)
        identity = identity_of(subject.described, spec.bench)
        folder = spec.storage.path / "bench" / identity[:16]
        terms, notes = terms_of(spec, subject.longest)

        def target() -> Target:
            server = subject.target()
            write_json(folder / _SERVER_FILE, fingerprint_of(server) or dict(subject.described))
            return server

        generator = stack.enter_context(LoadGenerator(subject.tokenizer, folder))
        bench = Bench(spec.bench, folder, generator, _once(target), terms)
        with console.stage("measure") as stage:
            cells, found = _measured(spec, bench, stage)
    outcomes = Outcomes(_kept_server(folder, subject), cells, found, (*notes, *_said_of(spec, cells)))
    return _kept(spec, tracker, outcomes, identity, folder)


def own_server(spec: ExperimentSpec, console: Console, stack: ExitStack) -> OwnServer:
    """Fetch the model of `spec` within a Ray session that `stack` ends, and return its server, not started yet."""
    stack.enter_context(ray_session(spec.storage))
    device = spec.hardware.slice.device
    chips = device.chip_count() if isinstance(device, Tpu) else spec.serve.tp * spec.serve.pp  # A TPU slice is taken whole.
    require_chips(device, chips * max(1, spec.serve.replicas))
    folders = named_adapters(spec)
    with console.stage(f"model: {spec.model.weights}"):
        base = served_base(spec, fetch(spec))
        adapters = tuple(base.adapter(name, folder) for name, folder in folders.items())
    return OwnServer(spec, base, adapters, tuple(folders.values()), engine_settings(spec, base, adapters))


def _own_subject(own: OwnServer, console: Console, stack: ExitStack) -> Subject:
    model = own.spec.bench.model or BASE
    if model not in own.settings.models:
        raise InputError(f"bench.model={model!r} is not served. Allowed: {', '.join(own.settings.models)}.")

    def target() -> Target:
        server = stack.enter_context(own.start(console))
        return server_at(server.base_url, model, server.api_key)

    return Subject({**own.described, "model": model}, target, own.base.folder, own.spec.serve.max_model_len)


def _url_subject(spec: ExperimentSpec, console: Console) -> Subject:
    """The server at `bench.url`, which must answer."""
    target = server_at(spec.bench.url, spec.bench.model, os.environ.get(spec.bench.api_key_env, ""))
    tokenizer = Path(spec.bench.tokenizer)
    if not spec.bench.tokenizer:
        with ray_session(spec.storage), console.stage(f"tokenizer: {spec.model.weights}"):
            tokenizer = fetch(spec).path
    elif not tokenizer.is_dir():
        raise InputError(f"bench.tokenizer={spec.bench.tokenizer!r} is no folder. Give the folder of a tokenizer, or leave it empty.")
    said = fingerprint_of(target)
    known = {"fingerprint": said.get("sha256")} if said else {"url": target.origin}
    return Subject({**known, "model": target.model, "hardware": spec.hardware.name}, lambda: target, tokenizer, 0)


def terms_of(spec: ExperimentSpec, longest: int) -> tuple[Terms, list[str]]:
    """What the server is judged by, and what of it is not known."""
    notes = []
    engines = None
    if spec.hardware.slice.chip is None:
        notes.append(f"hardware={spec.hardware.name} has no figures in the catalogue: physical bounds were not checked.")
    elif known_architecture(spec.model, spec.storage.path / "cache") is None:
        notes.append("The model's architecture is not known here: physical bounds were not checked.")
    else:
        engines = _engines(spec)
    price = spec.hardware.slice.price(spec.plan.price, spec.plan.region)
    if price is None:
        notes.append(f"hardware={spec.hardware.name} has no {spec.plan.price} price in the catalogue: no cost per token.")
    elif warning := price.warning(datetime.now(UTC).date(), spec.plan.price_max_age_days):
        notes.append(warning)
    return Terms(longest, engines, price.usd_per_hour if price else None), notes


def _engines(spec: ExperimentSpec) -> Engines:
    """The engines of `spec`. Stages of layers count as chips that share each layer: no bound is too high that way."""
    serve, point = spec.serve, serving_point(spec)
    return Engines(replace(point, tp=serve.tp * serve.pp), max(serve.replicas, serve.max_replicas, 1), serve.speculative != "none")


def counting(stage: Stage, total: int) -> Progress:
    """Progress over several measurements, each of which counts from nothing."""
    before = 0

    def heard(done: int, of: int) -> None:
        nonlocal before
        stage.progress("requests", before + done, total)
        before += of if done == of else 0

    return heard


def _measured(spec: ExperimentSpec, bench: Bench, stage: Stage) -> tuple[tuple[CellResult, ...], tuple[Found, ...]]:
    if spec.bench.search:
        cells, found = [], []
        for prompt in spec.bench.prompt_tokens:
            for output in spec.bench.output_tokens:
                tried, where = bench.search(prompt, output, lambda cell: _named(stage, cell))
                cells += tried
                found.append(where)
        return tuple(cells), tuple(found)
    todo = cells_of(spec.bench)
    total = sum(len(bench.missing(cell)) * cell.requests for cell in todo)
    progress = counting(stage, total)
    return tuple(bench.result(cell, progress) for cell in todo), ()


def _named(stage: Stage, cell: Cell) -> Progress:
    return lambda done, of: stage.progress(cell.name, done, of)


def _once(make: Callable[[], Target]) -> Callable[[], Target]:
    made: list[Target] = []

    def get() -> Target:
        if not made:
            made.append(make())
        return made[0]

    return get


def _kept_server(folder: Path, subject: Subject) -> Mapping[str, Any]:
    """What was measured, as it said then."""
    try:
        return {**read_json(folder / _SERVER_FILE)}
    except (OSError, ValueError, TypeError):
        return subject.described


def _said_of(spec: ExperimentSpec, cells: tuple[CellResult, ...]) -> list[str]:
    """What a reader must know of the figures."""
    notes = [f"{one.cell.name}: {note}" for one in cells for note in one.notes]
    if spec.bench.repeats == 1:
        notes.append("One repeat: no intervals. bench.repeats=3 gives them.")
    if spec.bench.cache == "cold" and not all(measured.reset for one in cells for measured in one.measurements):
        notes.append("The server cannot empty its prefix cache; it stayed cold because every prompt was sent once only.")
    if spec.bench.cache == "warm":
        notes.append("bench.cache=warm: every prompt had been sent before it was measured.")
    return notes


def _kept(spec: ExperimentSpec, tracker: Tracker, outcomes: Outcomes, identity: str, folder: Path) -> Done:
    """Write the files and track them, unless a finished run has this very result."""
    values = as_json(outcomes, {"benchmark": identity, "hardware": spec.hardware.name, "folder": str(folder)})
    result = folder / "result"
    write_files(outcomes, values, result)
    run_id = track("benchmark", spec, tracker, values, result, metrics_of(outcomes.cells), _lineage(outcomes.server, spec.bench.model))
    return Done({**values, "run_id": run_id}, render(outcomes), result)


def track(
    kind: str,
    spec: ExperimentSpec,
    tracker: Tracker,
    values: Mapping[str, Any],
    folder: Path,
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
) -> str:
    """Put a result into MLflow as a run of `kind` and return it; the same result is one run."""
    identity = digest_text(canonical_json([kind, dict(values)]))
    found = tracker.find(identity)
    if found:
        return found.run_id
    run_id = tracker.start(spec.name, kind, identity=identity, tags=tags, params=spec)
    status = "FAILED"
    try:
        tracker.provenance(run_id, gather_provenance())
        tracker.artifact_json(run_id, "records/spec.json", asdict(spec))
        tracker.artifact_folder(run_id, folder, "benchmark")
        tracker.metrics(run_id, metrics, 0)
        status = "FINISHED"
    finally:
        tracker.finish(run_id, status)
    return run_id


def _lineage(server: Mapping[str, Any], model: str) -> dict[str, str]:
    """Tags that lead from a run to the server that it measured, and to the weights and the adapter behind it, as far as the server says."""
    if "sha256" not in server:
        return {}
    adapter = server["adapters"].get(model)
    tags = {TAG_SERVER: str(server["sha256"]), TAG_BASE: str(server["model"]["weights"])}
    return {**tags, **({TAG_ADAPTER: str(adapter)} if adapter else {})}
