"""Measure a server under load: `crossmesh benchmark bench=concurrency`; `bench=bare` is what Ray Serve costs; `-m` sweeps."""

import sys
from dataclasses import dataclass

from rich.console import Console as RichConsole

from crossmesh.config.command_line import command
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job
from crossmesh.config.points import SweptJobs
from crossmesh.config.sweep import SweepKeys
from crossmesh.console import Console
from crossmesh.installation import conf_folder, job_command


@dataclass(frozen=True)
class BenchmarkKeys(SweepKeys):
    """The job's own keys."""


def run(job: Job[BenchmarkKeys]) -> None:
    """Measure, show, and say where the files are; what was measured before is not measured again."""
    from crossmesh.paper.serving import serving_json, serving_table
    from crossmesh.pipeline.benchmark import benchmark
    from crossmesh.pipeline.benchmark_bare import benchmark_bare
    from crossmesh.plan.gate import gate_serving
    from crossmesh.plan.planner import own_planner

    spec, console, out = job.spec, Console(), RichConsole(highlight=False)
    if spec.bench.report:
        console.finish(lambda: out.print(serving_table()), serving_json(), job.keys.output)
        return
    if not spec.bench.url:
        gate_serving(spec, own_planner(spec))
    done = (benchmark_bare if spec.bench.against else benchmark)(spec, console)
    console.finish(lambda: out.print(done.shown), done.values, job.keys.output)
    console.say(f"files of the benchmark: {done.folder}")


def sweep(points: SweptJobs[BenchmarkKeys]) -> None:
    """Measure at every point (`-m`), one server after another, and show them together."""
    from crossmesh.pipeline.benchmark_sweep import Benchmarking
    from crossmesh.sweep.driver import run_sweep
    from crossmesh.sweep.request import request_of

    request = request_of("benchmark", list(points), points.launcher, lambda _: False)
    run_sweep(request, Benchmarking(), command(job_command("benchmark"), sys.argv[1:]))


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("benchmark", BenchmarkKeys, run, conf_folder(), sweep=sweep, slow=True)
