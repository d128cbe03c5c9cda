"""What Ray Serve and our gate cost: our server, plain `ray.serve.llm` and bare vLLM, each at its best, in turns on the same prompts."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from crossmesh.bench.endpoint import server_at
from crossmesh.bench.gate_cost import gate_cost
from crossmesh.bench.load import LoadGenerator, Target
from crossmesh.bench.overhead import BARE, BARE_IN_PROCESS, OURS, PLAIN, SERVERS, Overhead, overhead_json, overhead_of, overhead_table
from crossmesh.bench.results import RESULT_FILE, cell_json
from crossmesh.bench.runner import Bench, CellResult
from crossmesh.bench.servers import bare_server, plain_server
from crossmesh.bench.store import identity_of
from crossmesh.bench.workload import cells_of
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.files import write_json
from crossmesh.pipeline.benchmark import Done, counting, track
from crossmesh.pipeline.benchmark_subject import OwnServer, own_server, terms_of
from crossmesh.serve.vllm.settings import EngineSettings
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker


@dataclass
class _Servers:
    """The servers, all started when the first measurement is missing, because they are measured in turns."""

    own: OwnServer
    console: Console
    stack: ExitStack
    folder: Path
    """Takes their logs."""
    targets: dict[str, Target]

    def get(self, name: str) -> Callable[[], Target]:
        """Say where server `name` is, later."""

        def target() -> Target:
            if not self.targets:
                self._start()
            return self.targets[name]

        return target

    def _start(self) -> None:
        """Start all at once: most of it is importing, on one core each."""
        spec, settings = self.own.spec, self.own.settings
        plain = self.stack.enter_context(plain_server(spec, settings, self.folder / "plain.log"))
        bares = {BARE: self.stack.enter_context(bare_server(spec, settings, self.folder / "bare.log"))}
        if BARE_IN_PROCESS in servers_of(settings):
            log = self.folder / "bare_in_process.log"
            bares[BARE_IN_PROCESS] = self.stack.enter_context(bare_server(spec, settings, log, like_ours=True))
        server = self.stack.enter_context(self.own.start(self.console))
        with self.console.stage("serve: bare vLLM and plain ray.serve.llm"):
            self.targets |= {**{name: ready() for name, ready in bares.items()}, PLAIN: plain()}
        self.targets[OURS] = server_at(server.base_url, settings.models[0], server.api_key)


def benchmark_bare(spec: ExperimentSpec, console: Console) -> Done:
    """Measure every cell on each server and return the ratios.

    Raises `InputError` with adapters, which the stock servers load otherwise, and on a cluster.
    """
    if spec.serve.adapters:
        raise InputError("bench.against=bare measures the base model. Leave serve.adapters empty.")
    if os.environ.get("RAY_ADDRESS", "local") not in ("", "local"):
        raise InputError("bench.against=bare compares servers of one machine, this one. Unset RAY_ADDRESS.")
    tracker = open_tracker(spec.tracking, spec.storage)
    with ExitStack() as stack:
        own = own_server(spec, console, stack)
        names = servers_of(own.settings)
        identity = identity_of({**own.described, "against": spec.bench.against, "servers": names, "layouts": "own"}, spec.bench)
        folder = spec.storage.path / "bench" / identity[:16]
        terms, notes = terms_of(spec, spec.serve.max_model_len)
        generator = stack.enter_context(LoadGenerator(own.base.folder, folder))
        servers = _Servers(own, console, stack, folder, {})
        benches = {name: Bench(spec.bench, folder / name, generator, servers.get(name), terms) for name in names}
        todo = cells_of(spec.bench)
        with console.stage(f"measure: {len(names)} servers in turns") as stage:
            progress = counting(stage, sum(cell.requests * len(bench.missing(cell)) for cell in todo for bench in benches.values()))
            for cell in todo:
                for repeat in range(spec.bench.repeats):
                    for name in _turn(names, repeat):
                        benches[name].measure(cell, repeat, progress)
        results = [{name: bench.result(cell, progress) for name, bench in benches.items()} for cell in todo]
    return _kept(spec, tracker, identity, results, notes)


def servers_of(settings: EngineSettings) -> tuple[str, ...]:
    """The servers that are compared: on a CPU vLLM's own in two layouts, because its default puts the only worker into another process."""
    return (BARE_IN_PROCESS, *SERVERS) if settings.kind == "serve/vllm-cpu" else SERVERS


def _turn(names: tuple[str, ...], repeat: int) -> tuple[str, ...]:
    """The order of one round: each server is first as often as any."""
    first = repeat % len(names)
    return names[first:] + names[:first]


def _kept(spec: ExperimentSpec, tracker: Tracker, identity: str, results: list[dict[str, CellResult]], notes: list[str]) -> Done:
    found = [overhead for one in results if (overhead := overhead_of(one))]
    left_out = [result for one in results for result in one.values() if not result.comparable]
    folder = spec.storage.path / "bench" / identity[:16] / "result"
    gate = gate_cost(max(spec.bench.output_tokens))
    notes = [
        *notes,
        f"Of ours, the gate's own code takes {1e3 * gate.first_s:.2g} ms to the first token and {1e6 * gate.token_s:.2g} us for each "
        "further one, timed alone.",
    ]
    values = {
        "benchmark": identity,
        "against": spec.bench.against,
        **({"emulated": True} if spec.hardware.emulated else {}),
        "overhead": overhead_json(found),
        "gate": asdict(gate),
        "cells": [{"server": name, **cell_json(result)} for one in results for name, result in one.items()],
        "left_out": sorted({result.cell.name for result in left_out}),
        "folder": str(folder),
        "notes": notes,
    }
    write_json(folder / RESULT_FILE, values)
    run_id = track("overhead", spec, tracker, values, folder, _metrics(found), {})
    return Done({**values, "run_id": run_id}, overhead_table(found, left_out, notes), folder)


def _metrics(found: list[Overhead]) -> dict[str, float]:
    names = ("ours_over_bare", "ours_over_plain", "plain_over_bare", "engine_s", "ingress_s", "ours_s")
    return {f"{one.cell}/{name}": getattr(one, name).mean for one in found for name in names}
