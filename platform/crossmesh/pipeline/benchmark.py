"""A benchmark from spec to tracked result: finds or starts the server, measures what is missing, keeps files and a run."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Group

from crossmesh.bench.cells import Cell
from crossmesh.bench.endpoint import fingerprint_of, is_emulated
from crossmesh.bench.load import LoadGenerator, Progress, Target
from crossmesh.bench.results import Outcomes, as_json, metrics_of, render, write_files
from crossmesh.bench.runner import Bench, CellResult, Found
from crossmesh.bench.store import identity_of, trace_digest
from crossmesh.bench.workload import cells_of
from crossmesh.config.bench import TRACE_DIGEST
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console, Stage
from crossmesh.files import canonical_json, digest_text, read_json, write_json
from crossmesh.pipeline.benchmark_subject import Subject, own_server, own_subject, terms_of, url_subject
from crossmesh.track.provenance import gather_provenance
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_BASE, TAG_SERVER
from crossmesh.track.tracker import RunSettings, Tracker
from crossmesh.track.trackers import open_tracker

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
class Sweeping:
    """How a benchmark that is a point of a sweep speaks with it."""

    tracker: Tracker | None = None
    """The sweep's; None: one of its own."""
    parent: str | None = None
    """Id of the sweep's run."""
    on_start: Callable[[], None] = lambda: None
    """Called before a server is started, or asked."""
    check: Callable[[], None] = lambda: None
    """Called at every piece of progress; what it raises stops the benchmark, which keeps what it has measured."""


ALONE = Sweeping()


def benchmark(spec: ExperimentSpec, console: Console, sweeping: Sweeping = ALONE) -> Done:
    """Measure every cell of `spec.bench` that is not measured yet; the server is started only when there is one.

    Raises `InputError` for a server that does not answer or that the spec cannot be, `CrossmeshError` when server or client die: what was
    measured is kept.
    """
    tracker = sweeping.tracker or open_tracker(spec.tracking, spec.storage)
    with ExitStack() as stack:
        subject = url_subject(spec, console) if spec.bench.url else own_subject(own_server(spec, console, stack), console, stack)
        identity, trace = identity_of(subject.described, spec.bench), trace_digest(spec.bench)
        folder = spec.storage.path / "bench" / identity[:16]
        terms, notes = terms_of(spec, subject.longest)

        def target() -> Target:
            sweeping.on_start()
            server = subject.target()
            write_json(folder / _SERVER_FILE, fingerprint_of(server) or dict(subject.described))
            return server

        generator = stack.enter_context(LoadGenerator(subject.tokenizer, folder))
        bench = Bench(spec.bench, folder, generator, _once(target), terms)
        with console.stage("measure") as stage:
            cells, found = _measured(spec, bench, stage, sweeping.check)
    outcomes = Outcomes(_kept_server(folder, subject), cells, found, (*notes, *_said_of(spec, cells)))
    return _kept(spec, tracker, outcomes, {"benchmark": identity, **({"trace_sha256": trace} if trace else {})}, folder, sweeping.parent)


def counting(stage: Stage, total: int, check: Callable[[], None] = ALONE.check) -> Progress:
    """Progress over several measurements, each of which counts from nothing; `check` is called with each piece."""
    before = 0

    def on_event(done: int, of: int) -> None:
        nonlocal before
        check()
        stage.progress("requests", before + done, total)
        before += of if done == of else 0

    return on_event


def _measured(
    spec: ExperimentSpec, bench: Bench, stage: Stage, check: Callable[[], None]
) -> tuple[tuple[CellResult, ...], tuple[Found, ...]]:
    if spec.bench.search:
        cells, found = [], []
        for prompt in spec.bench.prompt_tokens:
            for output in spec.bench.output_tokens:
                tried, where = bench.search(prompt, output, lambda cell: _named(stage, cell, check))
                cells += tried
                found.append(where)
        return tuple(cells), tuple(found)
    todo = cells_of(spec.bench)
    total = sum(len(bench.missing(cell)) * cell.requests for cell in todo)
    progress = counting(stage, total, check)
    return tuple(bench.result(cell, progress) for cell in todo), ()


def _named(stage: Stage, cell: Cell, check: Callable[[], None]) -> Progress:
    def on_event(done: int, of: int) -> None:
        check()
        stage.progress(cell.name, done, of)

    return on_event


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
        shared = any(measured.shared_share for one in cells for measured in one.measurements)
        but = ", but for the beginnings that the trace shares" if shared else ""
        notes.append(f"The server cannot empty its prefix cache; it stayed cold because every prompt was sent once only{but}.")
    if spec.bench.cache == "warm":
        notes.append("bench.cache=warm: every prompt had been sent before it was measured.")
    return notes


def _kept(spec: ExperimentSpec, tracker: Tracker, outcomes: Outcomes, head: Mapping[str, str], folder: Path, parent: str | None) -> Done:
    """Write the files and track them, unless a finished run has this very result."""
    emulation = {"emulated": True} if is_emulated(outcomes.server) else {}
    values = as_json(outcomes, {**head, "hardware": spec.hardware.name, **emulation, "folder": str(folder)})
    result = folder / "result"
    write_files(outcomes, values, result)
    lineage = _lineage(outcomes.server, spec.bench.model)
    run_id = track("benchmark", spec, tracker, values, result, metrics_of(outcomes.cells), lineage, parent)
    return Done({**values, "run_id": run_id}, render(outcomes), result)


def track(
    kind: str,
    spec: ExperimentSpec,
    tracker: Tracker,
    values: Mapping[str, Any],
    folder: Path,
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    parent: str | None = None,
) -> str:
    """Track a result as a run of `kind`, under `parent`, and return it; the same result is one run."""
    identity = digest_text(canonical_json([kind, dict(values)]))
    found = tracker.find(identity)
    if found:
        if parent:
            tracker.adopt(found.run_id, parent)
        return found.run_id
    params = {one.name: getattr(spec, one.name) for one in fields(spec)}
    if "trace_sha256" in values:
        params[TRACE_DIGEST] = values["trace_sha256"]
    settings = RunSettings(params, emulated=bool(values.get("emulated")))
    run_id = tracker.start(spec.name, kind, parent=parent, identity=identity, tags=tags, params=settings)
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
