"""A benchmark as what a sweep runs: one server after another, each measured as one alone would be."""

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.pipeline.benchmark import Sweeping, benchmark
from crossmesh.plan.gate import gate_serving
from crossmesh.plan.planner import Planner
from crossmesh.sweep.policy import Need
from crossmesh.sweep.work import Hooks, Ran, usd_per_hour
from crossmesh.track.tracker import Tracker
from crossmesh.train.events import StartEvent


class Benchmarking:
    """Measures a server at each point."""

    live = False

    def gate(self, spec: ExperimentSpec, planner: Planner) -> None:
        """As `Workload`."""
        if spec.bench.against or spec.bench.report:
            key = "bench.against" if spec.bench.against else "bench.report"
            raise InputError(f"{key} is for one benchmark alone. Leave it out, or leave -m out.")
        if not spec.bench.url:
            gate_serving(spec, planner)

    def need(self, spec: ExperimentSpec) -> Need:
        """As `Workload`; they run one after another."""
        return Need(spec.hardware.name, 1)

    def usd_per_hour(self, spec: ExperimentSpec) -> float | None:
        """As `Workload`: the slice of one engine."""
        return usd_per_hour(spec, 1)

    def run(self, spec: ExperimentSpec, tracker: Tracker, hooks: Hooks) -> Ran:
        """As `Workload`. What was measured before is not measured again, and no server is started for it."""
        started = False

        def start() -> None:
            nonlocal started
            started = True
            hooks.on_event(StartEvent("measuring"))

        done = benchmark(spec, Console(), Sweeping(tracker, hooks.parent, start, hooks.check))
        return Ran(str(done.values["run_id"]), skipped=not started)
