"""Fine-tune one model: `crossmesh finetune experiment=demo backend=jax`; `-m mesh=fsdp,tp batch.micro=1,2` sweeps."""

import sys
from dataclasses import dataclass

from crossmesh.config.command_line import arguments_with_prefix, command, where_given
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job
from crossmesh.config.points import SweptJobs
from crossmesh.config.repeats import check_repeats
from crossmesh.config.sweep import SweepKeys
from crossmesh.console import Console
from crossmesh.installation import conf_folder, job_command


@dataclass(frozen=True)
class FinetuneKeys(SweepKeys):
    """The job's own keys."""

    force: bool = False
    """Train again although this trial is done."""
    repeats: int = 0
    """Repeats of the first steps that the trial is to have, of a sweep's trials interleaved; three decide which trains faster."""
    repeat_steps: int = 8
    """Steps of a repeat."""

    def __post_init__(self) -> None:
        """Check the repeats."""
        super().__post_init__()
        check_repeats("repeats", self.repeats, "repeat_steps", self.repeat_steps)


def run(job: Job[FinetuneKeys]) -> None:
    """Plan, fetch the base, prepare the data, train, and say where the adapter is, or with `lora.rank=0` the whole model."""
    from crossmesh.cluster.session import cluster_session, require_chips
    from crossmesh.plan.gate import announced, gate_training
    from crossmesh.plan.planner import own_planner
    from crossmesh.sweep.repeat import add_repeats
    from crossmesh.sweep.training import values_of
    from crossmesh.track.trackers import open_tracker
    from crossmesh.train.launch import check_trainable
    from crossmesh.trial.trial import fetch, prepare, run_trial

    spec, console = job.spec, Console()
    check_trainable(spec)
    tracker = open_tracker(spec.tracking, spec.storage, console.say)
    if planned := gate_training(spec, own_planner(spec, tracker)):
        console.say(announced(spec, planned))
    require_chips(spec.hardware.slice.device, spec.training_chips)
    with cluster_session(spec.storage):
        with console.stage(f"model: {spec.model.weights}"):
            model = fetch(spec)
        with console.stage(f"data: {spec.data.source}"):
            prepared = prepare(spec, model, tracker)
        with console.stage(f"train: {spec.backend_name}") as stage:
            trial = run_trial(spec, prepared, tracker, stage.hear, force=job.keys.force)
        if job.keys.repeats:
            add_repeats(tracker, spec, [tracker.run(trial.run_id)], job.keys.repeats, job.keys.repeat_steps, console.say)
    console.result(f"{spec.name}: {spec.backend_name}", values_of(spec, trial), job.keys.output)
    if not spec.lora.full:
        served = [*arguments_with_prefix("experiment=", "model=", "model."), f"serve.adapters=[mine:{trial.run_id}]", *where_given()]
        console.say(f"next: {command(job_command('evaluate'), served)}, or {job_command('serve')} with the same keys")


def sweep(points: SweptJobs[FinetuneKeys]) -> None:
    """Fine-tune at every point (`-m`), and show them together."""
    from crossmesh.sweep.driver import run_sweep
    from crossmesh.sweep.repeat import Repeats
    from crossmesh.sweep.request import request_of
    from crossmesh.sweep.training import Training

    swept = list(points)
    request = request_of("finetune", swept, points.launcher, lambda keys: keys.force)
    keys = next((point.job.keys for point in swept if isinstance(point.job, Job)), FinetuneKeys())
    then = Repeats(keys.repeats, keys.repeat_steps) if keys.repeats else None
    run_sweep(request, Training(), command(job_command("finetune"), sys.argv[1:]), then=then)


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("finetune", FinetuneKeys, run, conf_folder(), sweep=sweep, slow=True)
