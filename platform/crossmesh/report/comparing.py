"""A comparison from selection to files: which runs, their report in a folder and as a run. What the report says is decided elsewhere."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossmesh.config.command_line import where_given
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.errors import InputError, require
from crossmesh.files import canonical_json, digest_file, digest_text
from crossmesh.report.gate.comparable import form_notes, unproven_notes
from crossmesh.report.gate.dropped import dropped_notes
from crossmesh.report.gate.selection import Selection, experiment_runs, find_run, named_runs, newest_runs, sweep_runs, trainings_of
from crossmesh.report.keeping import KIND, Keeper, Kept
from crossmesh.report.labels import natural
from crossmesh.report.pages.write import JSON_NAME, Report, make_report
from crossmesh.report.stored import stored_variants
from crossmesh.report.variants import Results
from crossmesh.track.tracker import Tracker


@dataclass(frozen=True)
class FinishedComparison:
    """A finished comparison."""

    report: Report
    page: Path
    """The HTML; Markdown and JSON lie beside it."""
    run_id: str
    """The run that has the files."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for cycles within the block, nor later among what it made: of thousands of runs these are millions of values."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def select(
    tracker: Tracker, name: str, runs: Sequence[str], sweep: str, baseline: str, candidate: str, limits: Mapping[str, str]
) -> Selection:
    """Return what is asked for; exactly one of runs, sweep, baseline with candidate, and an experiment's name.

    Raises `InputError` for none or several of them, and for limits without a candidate.
    """
    asked = [key for key, given in (("runs", runs), ("sweep", sweep), ("baseline", baseline)) if given]
    if len(asked) > 1:
        raise InputError(
            f"{' and '.join(asked)} were given. Allowed: one of runs=[a,b], sweep=ID, experiment=FILE, baseline=ID candidate=ID."
        )
    if limits and not baseline:
        raise InputError(f"fail_if.{next(iter(limits))} was given without a candidate. Allowed: with baseline=ID candidate=ID.")
    if baseline:
        pair = (find_run(tracker, "baseline", baseline), find_run(tracker, "candidate", candidate))
        both = Selection(f"candidate {candidate[:8]} against {baseline[:8]}", pair, as_given=True)
        require(both.runs[0].run_id != both.runs[1].run_id, "candidate", candidate, "another run than the baseline")
        return both
    if runs:
        require(len(set(runs)) == len(runs) >= 2, "runs", list(runs), "two or more different MLflow run ids, or how they begin: runs=[a,b]")
        return named_runs(tracker, runs)
    if sweep:
        return sweep_runs(tracker, sweep)
    if name == ExperimentSpec().name:
        allowed = "runs=[a,b], sweep=ID, experiment=FILE, or baseline=ID candidate=ID"
        raise InputError(f"Nothing to compare was given. Allowed: {allowed}.{newest_runs(tracker)}")
    return experiment_runs(tracker, name)


def compare_runs(
    tracker: Tracker,
    selection: Selection,
    command: str,
    folder: Path,
    hours: tuple[float, ...],
    qps: float,
    spec: ExperimentSpec,
) -> FinishedComparison:
    """Make the report of `selection`, write it into a folder of its own in `folder`, and log it; the same report is logged once.

    Args:
        tracker: where the runs are.
        selection: the runs.
        command: what to type to get the report again.
        folder: where reports go.
        hours: hours of serving that total costs are given for.
        qps: requests a second that a system must answer in total costs; 0: one engine.
        spec: of this job; `hardware.catalogue` is a file with own prices (empty: the one that each run had), `matters` what matters.
    """
    with Keeper(tracker, spec.tracking, spec.storage, len(selection.runs)) as keeper:
        variants = stored_variants(tracker, selection.runs, spec.hardware.catalogue)
        if not selection.as_given:
            variants = tuple(sorted(variants, key=lambda one: (one.training is not None, natural(one.name))))
        dropped = dropped_notes(tracker, trainings_of(selection))
        notes = (*selection.notes, *form_notes(variants), *unproven_notes(variants), *dropped)
        told = (selection.title, variants, command, tracker.ui_command, notes, hours, qps)
        report = make_report(Results(*told, matters=spec.matters, where=where_given()))
        digest = digest_text(canonical_json([one.run_id for one in selection.runs]))
        page = report.write(folder / f"{_file_name(selection.title)}-{digest[:8]}")
        identity = digest_text(canonical_json([KIND, digest_file(page.with_name(JSON_NAME))]))
        if found := tracker.find(identity):
            return FinishedComparison(report, page, found.run_id)
        run_id = keeper.keep(Kept(selection.title, identity, str(page.parent), len(selection.runs), command))
    return FinishedComparison(report, page, run_id)


def _file_name(title: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in title)[:40]
