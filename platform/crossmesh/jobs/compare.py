"""Set runs side by side, as far as they may be: `crossmesh compare runs=[a5d278ef,611ccbdd]`, `sweep=ID` or `experiment=demo`."""

import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console as RichConsole

from crossmesh.config.command_line import command
from crossmesh.config.compose import run_job
from crossmesh.config.job import Job
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError
from crossmesh.installation import conf_folder, job_command
from crossmesh.report.comparing import compare_runs, select, uncollected
from crossmesh.report.findings import repeat_command
from crossmesh.report.gate.selection import trainings_of
from crossmesh.report.regression import REGRESSION, judge_regressions, require_decided
from crossmesh.report.request import CompareKeys
from crossmesh.report.tables.terminal import print_report
from crossmesh.track.trackers import open_tracker


def run(job: Job[CompareKeys]) -> None:
    """Read the runs, write the report, and judge the candidate where there is one."""
    spec, keys, console = job.spec, job.keys, Console()
    limits = {key: text for key, text in asdict(keys.fail_if).items() if text}
    with uncollected():
        tracker = open_tracker(spec.tracking, spec.storage)
        selection = select(tracker, spec.name, keys.runs, keys.sweep, keys.baseline, keys.candidate, limits)
    if keys.repeat:
        from crossmesh.sweep.repeat import add_repeats  # Ray takes seconds, and a comparison needs none.

        add_repeats(tracker, spec, trainings_of(selection), keys.repeat, keys.repeat_steps, console.say)
    again = command(job_command("compare"), sys.argv[1:])
    with uncollected():
        done = compare_runs(tracker, selection, again, Path(keys.folder).absolute(), keys.hours, keys.qps, spec)
    judged = judge_regressions(done.report, [one.run_id for one in selection.runs], limits) if keys.baseline else ()
    values = done.report.json() | {"report": str(done.page), "run_id": done.run_id}
    values["judged"] = [{**asdict(one), "words": one.words} for one in judged]
    console.finish(lambda: print_report(done.report, RichConsole(highlight=False)), values, keys.output)
    console.say(f"report: {done.page}")
    for one in judged:
        console.say(one.words)
    if any(one.verdict == REGRESSION for one in judged):
        sys.exit(CrossmeshError.exit_code)
    require_decided(judged, repeat_command(done.report.results, *(one.run_id for one in selection.runs)))


def main() -> None:
    """Run the job that the command line asks for."""
    run_job("compare", CompareKeys, run, conf_folder())
