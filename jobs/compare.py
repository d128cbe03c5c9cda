"""Set runs side by side, as far as they may be: `python jobs/compare.py runs=[a5d278ef,611ccbdd]`, `sweep=ID` or `experiment=demo`."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from crossmesh.interpreter import require_packages

require_packages()

from rich.console import Console as RichConsole

from crossmesh.console import Console
from crossmesh.errors import CrossmeshError, InputError, require
from crossmesh.report.comparing import Limits, compare_runs, select
from crossmesh.report.findings import repeat_command
from crossmesh.report.regression import ONE_RUN, REGRESSION, judge
from crossmesh.report.selection import TRAIN, kind_of
from crossmesh.report.tables import print_report
from crossmesh.spec.command_line import command
from crossmesh.spec.compose import Job, JobKeys, run_job
from crossmesh.sweep.repeat import add_repeats, check_repeats
from crossmesh.track.tracker import Tracker


@dataclass(frozen=True)
class CompareKeys(JobKeys):
    """The job's own keys."""

    runs: tuple[str, ...] = ()
    """MLflow ids of trainings, evaluations or benchmarks, or how they begin."""
    sweep: str = ""
    """MLflow id of a sweep: all its finished trials."""
    baseline: str = ""
    """MLflow id of the run that `candidate` must not be worse than."""
    candidate: str = ""
    """MLflow id of the run that is judged by `fail_if`."""
    fail_if: Limits = field(default_factory=Limits)
    """The most that the candidate may change for the worse; the job exits with 1 where it changed by more, outside its interval."""
    hours: tuple[float, ...] = (1.0, 8.0, 24.0)
    """Hours of serving that total costs are given for."""
    qps: float = 0.0
    """Requests a second that each system must answer within the benchmark's SLO in total costs; 0: one engine, whatever it sustains."""
    repeat: int = 0
    """Interleaved repeats that each compared training is to have; missing ones are made first. Three decide which trains faster."""
    repeat_steps: int = 8
    """Steps of a repeat."""
    folder: str = "outputs/compare"
    """The report goes to a folder of its own in it; relative to where the job is started."""

    def __post_init__(self) -> None:
        """Check what is asked for."""
        super().__post_init__()
        object.__setattr__(self, "runs", tuple(str(run) for run in self.runs))
        object.__setattr__(self, "hours", tuple(float(hours) for hours in self.hours))
        positive = bool(self.hours) and all(hours > 0 for hours in self.hours)
        require(positive, "hours", list(self.hours), "positive numbers of hours, in brackets: [1,8,24]")
        require(self.qps >= 0, "qps", self.qps, "0 or a positive number of requests a second")
        check_repeats("repeat", self.repeat, "repeat_steps", self.repeat_steps)
        both = bool(self.baseline) == bool(self.candidate)
        require(both, "candidate", self.candidate, "baseline=ID and candidate=ID, both or neither")


def run(job: Job[CompareKeys]) -> None:
    """Read the runs, write the report, and judge the candidate where there is one."""
    spec, keys, console = job.spec, job.keys, Console()
    tracker = Tracker(spec.tracking, spec.storage)
    limits = {key: text for key, text in asdict(keys.fail_if).items() if text}
    selection = select(tracker, spec.name, keys.runs, keys.sweep, keys.baseline, keys.candidate, limits)
    if keys.repeat:
        trainings = [one for one in selection.runs if kind_of(one) == TRAIN]
        add_repeats(tracker, spec, trainings, keys.repeat, keys.repeat_steps, console.say)
    again = command("python jobs/compare.py", sys.argv[1:])
    done = compare_runs(tracker, selection, again, Path(keys.folder).absolute(), keys.hours, keys.qps, spec)
    judged = judge(done.report, [one.run_id for one in selection.runs], limits) if keys.baseline else ()
    values = done.report.json() | {"report": str(done.page), "run_id": done.run_id}
    values["judged"] = [{**asdict(one), "words": one.words} for one in judged]
    console.finish(lambda: print_report(done.report, RichConsole(highlight=False)), values, keys.output)
    console.say(f"report: {done.page}")
    for one in judged:
        console.say(one.words)
    if any(one.verdict == REGRESSION for one in judged):
        sys.exit(CrossmeshError.exit_code)
    if open_ := [one for one in judged if one.verdict == ONE_RUN]:
        more = repeat_command(done.report.results, *(one.run_id for one in selection.runs))
        raise InputError(
            f"fail_if.{open_[0].limit.key} cannot be judged: {open_[0].change.words} is beyond the limit, and one run each says nothing of "
            f"the machine. Add repeats and judge fail_if.tokens_per_s: {more}"
        )


if __name__ == "__main__":
    run_job("compare", CompareKeys, run, Path(__file__).resolve().parents[1] / "conf")
