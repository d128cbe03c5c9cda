"""Train on each backend, serve, evaluate and compare: `crossmesh pipeline experiment=demo`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console as RichConsole

from crossmesh.config.command_line import command
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job, JobKeys
from crossmesh.config.repeats import check_repeats
from crossmesh.config.training import BACKENDS
from crossmesh.console import Console
from crossmesh.errors import require, require_choice
from crossmesh.installation import conf_folder, job_command


@dataclass(frozen=True)
class PipelineKeys(JobKeys):
    """The job's own keys."""

    backends: tuple[str, ...] = BACKENDS
    """Backends to train on, in the order they are shown."""
    folder: str = "outputs"
    """The report goes to a folder of the experiment's name in it; relative to where the job is started."""
    force: bool = False
    """Do every stage again."""
    repeats: int = 0
    """Interleaved repeats of the first steps that each training is to have; three decide which trains faster."""
    repeat_steps: int = 8
    """Steps of a repeat."""

    def __post_init__(self) -> None:
        """Check the backends."""
        super().__post_init__()
        check_repeats("repeats", self.repeats, "repeat_steps", self.repeat_steps)
        object.__setattr__(self, "backends", tuple(self.backends))
        require(bool(self.backends), "backends", list(self.backends), f"one or more of {', '.join(BACKENDS)}")
        for backend in self.backends:
            require_choice("backends", backend, BACKENDS)
        require(len(set(self.backends)) == len(self.backends), "backends", list(self.backends), "each backend once")


def run(job: Job[PipelineKeys]) -> None:
    """Run the experiment and print its table."""
    from crossmesh.cluster.session import ray_session
    from crossmesh.pipeline.experiment import check_experiment, run_experiment
    from crossmesh.report.tables.terminal import print_report
    from crossmesh.sweep.repeat import Repeats
    from crossmesh.track.trackers import open_tracker

    spec, keys, console = job.spec, job.keys, Console()
    tracker = open_tracker(spec.tracking, spec.storage, console.say)
    output = Path(keys.folder).absolute() / spec.name
    again = command(job_command("pipeline"), sys.argv[1:])
    then = Repeats(keys.repeats, keys.repeat_steps) if keys.repeats else None
    check_experiment(spec, keys.backends, tracker, console)
    with ray_session(spec.storage):
        outcome = run_experiment(spec, keys.backends, tracker, console, output, again, then, force=keys.force)
    console.finish(
        lambda: print_report(outcome.report, RichConsole(highlight=False)),
        outcome.report.json() | {"report": str(outcome.page)},
        keys.output,
    )
    console.say(f"report: {outcome.page}")
    if tracker.keeps_runs:
        console.say(f"runs in {tracker.title}: {tracker.ui_command}")


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("pipeline", PipelineKeys, run, conf_folder(), slow=True)
