"""Set finished training runs side by side, as far as they may be: `python jobs/compare.py runs=[a5d278ef,611ccbdd]`."""

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

from rich.console import Console as RichConsole

from crossmesh.console import Console
from crossmesh.errors import require
from crossmesh.report.stored import stored_variant
from crossmesh.report.tables import print_report
from crossmesh.report.variants import Results
from crossmesh.report.write import compare_results, report_json
from crossmesh.spec.compose import Job, JobKeys, run_job
from crossmesh.track.tracker import Tracker


@dataclass(frozen=True)
class CompareKeys(JobKeys):
    """The job's own keys."""

    runs: tuple[str, ...] = ()
    """MLflow ids of training runs, or how they begin."""

    def __post_init__(self) -> None:
        """Turn the list into a tuple."""
        super().__post_init__()
        object.__setattr__(self, "runs", tuple(str(run) for run in self.runs))


def run(job: Job[CompareKeys]) -> None:
    """Read the runs' records and metrics, and print the verdict and the table."""
    runs = job.keys.runs
    require(len(set(runs)) == len(runs) >= 2, "runs", list(runs), "two or more different MLflow run ids, or how they begin: runs=[a,b]")
    tracker = Tracker(job.spec.tracking, job.spec.storage)
    variants = tuple(stored_variant(tracker, prefix) for prefix in runs)
    results = Results("runs", variants, " ".join(["python jobs/compare.py", *sys.argv[1:]]), tracker.ui_command)
    comparison = compare_results(results)
    Console().finish(
        lambda: print_report(results, comparison, RichConsole(highlight=False)), report_json(results, comparison), job.keys.output
    )


if __name__ == "__main__":
    run_job("compare", CompareKeys, run, Path(__file__).resolve().parents[1] / "conf")
