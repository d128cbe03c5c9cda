"""Runs that are killed and started again end as if nothing had happened.

A worker is killed, then the driver, then a bit of the newest checkpoint is flipped; the rerun must continue from the checkpoint before it.
Losses and adapter must be those of an uninterrupted run bit for bit, and the run must have each metric of each step once.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import TrackingSpec
from crossmesh.config.training import BACKENDS, BackendSpec, BatchSpec, CheckpointSpec, DataSpec, ModelSpec, OptimSpec, PackingSpec
from crossmesh.console import Console, Stage
from crossmesh.metrics import FINAL_LOSS
from crossmesh.train.events import Event, StepEvent, WarningEvent
from crossmesh.verify.result import CheckResult, Limit
from crossmesh.verify.resume.job import TrainingJob, flip_a_bit, step_of

STEPS = 36
_EVERY = 3
_KILL_WORKER, _KILL_DRIVER = 8, 17
"""Steps after which each is killed. A kill comes some steps late, because events take a moment: between, and not at, checkpoints."""


def verify_resume(spec: ExperimentSpec, folder: Path, console: Console, backends: Sequence[str] = BACKENDS) -> CheckResult:
    """Train a tiny model on each backend, once undisturbed and once disturbed, each in a storage and a local Ray of its own."""
    del spec  # The runs are the check's own.
    measured = {}
    for backend in backends:
        with console.stage(f"{backend}: undisturbed") as stage:
            plain = TrainingJob(_spec(backend), folder / f"{backend}-undisturbed").run(stage.hear)
        with console.stage(f"{backend}: killed, damaged and started again") as stage:
            disturbed = _disturbed(TrainingJob(_spec(backend), folder / f"{backend}-disturbed"), stage)
        measured[backend] = {"undisturbed": plain, **disturbed}
    return judge_resumption(measured)


def judge_resumption(measured: Mapping[str, Mapping[str, Any]]) -> CheckResult:
    """Hold the disturbed runs against the undisturbed ones."""
    limits: list[Limit] = []
    figures: dict[str, Any] = {"steps": STEPS, "checkpoint_every": _EVERY}
    for backend, results in measured.items():
        plain, result = results["undisturbed"], results["disturbed"]
        counts = {
            "losses_that_differ": differing(result["losses"], plain["losses"]),
            "adapters_that_differ": int(result["adapter"] != plain["adapter"]),
            "metrics_that_differ": len(set(result["metrics"]) ^ set(plain["metrics"])),
            "metric_steps_lost_or_twice": lost_or_twice(result["metrics"], STEPS) + lost_or_twice(plain["metrics"], STEPS),
            "logged_losses_that_differ": differing([value for _, value in result["metrics"].get(FINAL_LOSS.step, ())], plain["losses"]),
            "continued_elsewhere": abs(result["started_at"][-1] - 1 - results["sound_checkpoint"]),
        }
        limits += [Limit(f"{backend}.{name}", count, 0) for name, count in counts.items()]
        # That the faults were there: of a run that nothing happened to this would say nothing.
        limits += [
            Limit(f"{backend}.starts", len(result["started_at"]), 3, at_least=True),
            Limit(f"{backend}.damage_reported", len(results["reported"]), 1, at_least=True),
        ]
        figures[backend] = {name: value for name, value in results.items() if name not in ("undisturbed", "disturbed")}
        figures[backend] |= {"first_steps": result["started_at"], "metrics": sorted(result["metrics"])}
    return CheckResult("resume", tuple(limits), figures)


def differing(one: Sequence[float], other: Sequence[float]) -> int:
    """How many values are not the same bits; positions that only one side has are among them."""
    return sum(left != right for left, right in zip(one, other, strict=False)) + abs(len(one) - len(other))


def lost_or_twice(metrics: Mapping[str, Sequence[Sequence[float]]], steps: int) -> int:
    """How many values of steps 1 to `steps` are missing, and how many are one too many; one of the whole run has a single value."""
    count = 0
    for values in metrics.values():
        logged = [int(step) for step, _ in values]
        wanted = set(range(1, steps + 1)) if len(set(logged)) > 1 else {steps}
        count += len(wanted - set(logged)) + len(logged) - len(wanted & set(logged))
    return count


def _disturbed(job: TrainingJob, stage: Stage) -> dict[str, Any]:
    """Kill the worker, then the driver; damage the newest checkpoint; run to the end."""
    killed: dict[str, int] = {}
    events: list[Event] = []

    def disturb(event: Event) -> None:
        stage.hear(event)
        if not isinstance(event, StepEvent):
            return
        for who, step, kill in (("worker", _KILL_WORKER, job.kill_worker), ("driver", _KILL_DRIVER, job.kill_driver)):
            if event.step >= step and who not in killed:
                stage.say(f"SIGKILL to the {who}")
                killed[who] = event.step
                kill()

    def listen(event: Event) -> None:
        stage.hear(event)
        events.append(event)

    job.run(disturb)
    *_, sound, newest = job.checkpoints()
    stage.say(f"one bit flipped in {flip_a_bit(newest).relative_to(newest.parent)}")
    result = job.run(listen)
    return {
        "disturbed": result,
        "killed_after": killed,
        "damaged_checkpoint": step_of(newest),
        "sound_checkpoint": step_of(sound),
        "reported": [event.text for event in events if isinstance(event, WarningEvent) and "damaged" in event.text],
    }


def _spec(backend: str) -> ExperimentSpec:
    return ExperimentSpec(
        name="resume",
        model=ModelSpec(weights="random://tiny_llama@0"),
        data=DataSpec(max_length=128),
        batch=BatchSpec(size=8, micro=1),
        packing=PackingSpec("step"),
        optim=OptimSpec(steps=STEPS),
        backend=BackendSpec(backend),
        checkpoint=CheckpointSpec(every_steps=_EVERY, keep=4),
        tracking=TrackingSpec(system_metrics=False),
    )
