"""Runs as they are tracked, turned back into variants of a report. Reads records, metrics and results; judges nothing.

Which evaluation and which benchmark belong to which training is `lineage`'s.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossmesh.config.bench import RATE as RATE_LOAD
from crossmesh.config.bench import TRACE, TRACE_DIGEST
from crossmesh.config.fingerprint import digest_of, digest_of_parts
from crossmesh.errors import CrossmeshError
from crossmesh.evaluate.results import RECORD, RESULT, SURROUNDINGS, EvalResult
from crossmesh.files import canonical_json, digest_text
from crossmesh.metrics import FINAL_LOSS
from crossmesh.report.gate.integrity import (
    beside_weights,
    check_contents,
    check_digest,
    check_examined,
    check_identity,
    check_settings,
    check_spec,
    check_trained,
    science_settings,
    system_settings,
    unproven,
)
from crossmesh.report.gate.lineage import link
from crossmesh.report.gate.selection import BENCHMARK, EVALUATE, TRAIN, run_kind
from crossmesh.report.labels import variant_labels
from crossmesh.report.prices import rent
from crossmesh.report.tables.examples import MOST_VARIANTS, read_said
from crossmesh.report.trained_run import mean_power, planned_before, training_summary
from crossmesh.report.variants import (
    EMULATED_RENT,
    Rent,
    Repeat,
    RunRecord,
    Said,
    ServingCell,
    Variant,
    answers_of,
    scores_of,
)
from crossmesh.track.repeats import RATE, TAG_ROUND, TAG_STEPS, repeats_by_run, tracked_load_reasons
from crossmesh.track.tracked_run import TAG_PROVENANCE, TAG_SCIENCE, TAG_SYSTEM, TrackedRun
from crossmesh.track.tracker import Tracker

MOST_CURVES = 200
"""Of more trainings the losses of so many are read."""
MOST_SPECS = 200
"""Of more trainings the kept specs are not read."""
_LOSS = FINAL_LOSS.step
_WORKLOAD = ("cache", "seed", "warmup", "burstiness", "requests", "slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms", "slo_share")
_WORKLOAD_OF = {RATE_LOAD: ("seconds",), TRACE: ("time_scale", "length_scale")}
"""Keys of `bench` that say how a server was asked, under any load and under one."""
_SETTINGS = {"science": science_settings, "system": system_settings}
_TAG_OF = {"science": TAG_SCIENCE, "system": TAG_SYSTEM, "provenance": TAG_PROVENANCE}


def stored_variants(tracker: Tracker, runs: Sequence[TrackedRun], catalogue: str = "") -> tuple[Variant, ...]:
    """Return the variants of finished runs, in their order, with what was measured of their adapters; first their base, if it was examined.

    Args:
        tracker: where the runs are.
        runs: trainings, evaluations and benchmarks.
        catalogue: a file with own prices; empty: the one that each run had.

    Raises `InputError` for a run that lacks what a finished training has.
    """
    reader = _Reader(tracker, catalogue)
    repeats = repeats_by_run(tracker)
    trainings = [run for run in runs if run_kind(run) == TRAIN]
    given = [run for run in runs if run_kind(run) != TRAIN]
    found = link(trainings, given, [run for kind in (EVALUATE, BENCHMARK) for run in tracker.recent(kind)], reader.examined)
    reader.answers = len(trainings) + len(found.alone) + bool(found.base) <= MOST_VARIANTS
    reader.specs = len(trainings) <= MOST_SPECS
    reader.read_curves(trainings)
    trained = [reader.with_measured(reader.trained(run), found.of(run)) for run in trainings]
    trained = [replace(one, repeats=repeats_of(again)) if (again := repeats.get(str(one.run_id))) else one for one in trained]
    named = [_renamed(one, name) for one, name in zip(trained, variant_labels(trained), strict=True)]
    bases = [reader.with_measured(_untrained("base", found.base), [found.base])] if found.base else []
    own = [reader.with_measured(_untrained(_own_name(run), run), [run]) for run in found.alone]
    return (*bases, *named, *own)


def repeats_of(runs: Sequence[TrackedRun]) -> tuple[Repeat, ...]:
    """Repeats of one training as a report has them."""
    return tuple(
        Repeat(run.tags[TAG_ROUND], int(run.tags[TAG_STEPS]), run.metrics[RATE], run.run_id, tracked_load_reasons(run.metrics))
        for run in runs
    )


def _untrained(name: str, run: TrackedRun) -> Variant:
    return Variant(name, None, RunRecord(name), run_id=run.run_id)


def _own_name(run: TrackedRun) -> str:
    """What a variant is called that was measured and not trained here."""
    return f"{run.subject if run_kind(run) == EVALUATE else run.name} {run.run_id[:8]}"


def _renamed(variant: Variant, name: str) -> Variant:
    return replace(variant, name=name, record=replace(variant.record, name=name))


class _Reader:
    """Reads runs of one store; records that many runs share are read once."""

    def __init__(self, tracker: Tracker, catalogue: str) -> None:
        self.answers = False
        """Whether answers are read too, which are long."""
        self.specs = False
        """Whether the kept specs are held against the parameters; a comparison itself does not use them."""
        self._tracker = tracker
        self._catalogue = catalogue
        self._records: dict[tuple[str, str], Any] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self._settings: dict[tuple[str, str], Mapping[str, str]] = {}
        """What the parameters of runs with a record must be."""
        self._same: dict[str, Any] = {}
        """Parts of records, by what they say: thousands of records that differ in a rate share the rest."""
        self._losses: Mapping[str, tuple[tuple[int, float], ...]] = {}
        self._watts: dict[str, float] = {}
        """Mean power of all GPUs of a run together."""

    def read_curves(self, runs: Sequence[TrackedRun]) -> None:
        """Read what all trainings logged over time: losses, of many runs those of some, and power."""
        self._losses = self._tracker.histories(curves_of(runs), _LOSS)
        self._watts = mean_power(self._tracker, runs)

    def trained(self, run: TrackedRun) -> Variant:
        """A variant of a training run."""
        training = training_summary(run, self._losses.get(run.run_id, ()), self._watts.get(run.run_id))
        check_identity(run)
        science, system, provenance = (self._shared(run, scope) for scope in ("science", "system", "provenance"))
        for scope in _SETTINGS:
            check_settings(run, f"records/{scope}.json", self._settings[_key(run, scope)])
        if self.specs and (spec := self._artifact(run, "records/spec.json")) is not None:
            check_spec(run, spec)
        digests = {scope: self._digests[_key(run, scope)] for scope in _TAG_OF}
        if not check_trained(run, self._artifact(run, beside_weights(science))):
            science = unproven(run.run_id, science)
            digests["science"] = digest_of(science)
        record = RunRecord(run.run_id, science=science, system=system, provenance=provenance, digests=digests)
        return Variant(
            name=run.run_id,
            backend=system.get("backend", run.backend),
            record=record,
            training=training,
            run_id=run.run_id,
            rent=EMULATED_RENT if run.emulated or (record.system or {}).get("emulated") else self._rent(run),
            planned=planned_before(run),
            load=tracked_load_reasons(run.metrics),
            marked_emulated=run.emulated,
        )

    def with_measured(self, variant: Variant, runs: Sequence[TrackedRun]) -> Variant:
        """`variant` with what an evaluation and a benchmark found."""
        for run in runs:
            variant = self._evaluated(run, variant) if run_kind(run) == EVALUATE else self._benchmarked(run, variant)
        return variant

    def examined(self, run: TrackedRun) -> str:
        """The fingerprint of how an evaluation examined."""
        return digest_text(canonical_json(self._record(run, RECORD)))

    def _record(self, run: TrackedRun, path: str) -> Any:
        key = (path, run.run_id)
        if key not in self._records:
            self._records[key] = self._tracker.read_json(run.run_id, path)
        return self._records[key]

    def _shared(self, run: TrackedRun, scope: str) -> Any:
        """A record that all runs with the same fingerprint have; what is read has the digest of its tag."""
        key = _key(run, scope)
        if key not in self._records:
            contents = self._tracker.read_json(run.run_id, f"records/{scope}.json")
            texts = {name: canonical_json(part) for name, part in contents.items()}
            digest = digest_of_parts(texts)
            check_digest(run, scope, digest)
            self._records[key] = {name: self._same.setdefault(text, contents[name]) for name, text in texts.items()}
            self._digests[key] = digest
            if scope in _SETTINGS:
                self._settings[key] = _SETTINGS[scope](contents)
        return self._records[key]

    def _artifact(self, run: TrackedRun, path: str) -> Any:
        """A JSON object that a run may have; None where it has none, and an empty one for what is damaged."""
        try:
            found = self._tracker.read_json(run.run_id, path)
        except (CrossmeshError, OSError):
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _rent(self, run: TrackedRun) -> Rent:
        """What the slice that `run` names costs, as its own plan or `catalogue` has it."""
        params = run.params
        slices = int(params.get("mesh.dcn", "1")) if run_kind(run) == TRAIN else 1
        catalogue = self._catalogue or params.get("hardware.catalogue", "")
        return rent(
            params.get("hardware.name", "cpu"), params.get("plan.price", "on_demand"), params.get("plan.region", ""), catalogue, slices
        )

    def _evaluated(self, run: TrackedRun, variant: Variant) -> Variant:
        values = self._tracker.read_json(run.run_id, RESULT)
        result, examined = EvalResult.from_json(values), self._record(run, RECORD)
        check_contents(run, "evaluation", examined)
        check_examined(run, examined, values)
        around = self._record(run, SURROUNDINGS) if "form" in examined else None
        record = replace(variant.record, evaluation=examined, surroundings=around)
        return replace(
            variant, record=record, scores=scores_of(result), answers=answers_of(result), metrics=result.metrics, said=self._said(run)
        )

    def _said(self, run: TrackedRun) -> dict[str, Said]:
        """The answers of an evaluation; none of one that kept none."""
        if not self.answers:
            return {}
        try:
            with tempfile.TemporaryDirectory() as folder:
                return read_said(self._tracker.download(run.run_id, "samples/judged.jsonl", Path(folder)))
        except (CrossmeshError, OSError):
            return {}

    def _benchmarked(self, run: TrackedRun, variant: Variant) -> Variant:
        values = self._tracker.read_json(run.run_id, "benchmark/benchmark.json")
        server = {**values["server"], "hardware_slice": values.get("hardware", "")}
        record = replace(variant.record, workload=_workload(run), server=server)
        emulated = run.emulated or bool(values.get("emulated"))
        rented = EMULATED_RENT if emulated else self._rent(run)
        cells = tuple(_cell(one) for one in values["cells"])
        return replace(variant, record=record, serving=cells, serving_rent=rented, serving_emulated=emulated)


def curves_of(runs: Sequence[TrackedRun]) -> list[str]:
    """The ids of the trainings whose losses are read: all, or of many the best, the worst and those evenly between by their last loss."""
    if len(runs) <= MOST_CURVES:
        return [run.run_id for run in runs]
    ends = sorted((math.inf if math.isnan(end := run.metrics.get(FINAL_LOSS.key, math.inf)) else end, run.run_id) for run in runs)
    return [ends[round(number * (len(ends) - 1) / (MOST_CURVES - 1))][1] for number in range(MOST_CURVES)]


def _key(run: TrackedRun, scope: str) -> tuple[str, str]:
    """What all runs with the same record of a scope share."""
    return scope, run.tags.get(_TAG_OF[scope], run.run_id)


def _workload(run: TrackedRun) -> dict[str, str]:
    """How the server was asked; cells tell apart which loads are set side by side. A trace is known by its contents."""
    load = run.params.get("bench.load")
    options = sorted(key.removeprefix("bench.") for key in run.params if key.startswith("bench.options."))
    names = (*_WORKLOAD, *_WORKLOAD_OF.get(str(load), ()), *options)
    said = {name: run.params[f"bench.{name}"] for name in names if f"bench.{name}" in run.params}
    trace = run.params.get(TRACE_DIGEST) or run.params.get("bench.trace")  # Runs of before have its path alone.
    return {**said, **({"trace": trace} if trace is not None else {})}


def _cell(values: Mapping[str, Any]) -> ServingCell:
    name = "QPS" if values["load"] == RATE_LOAD else values["load"]
    load = f"{name} {values['value']:g}" if values["value"] else name
    figures = {name: (one["mean"], one["low"], one["high"]) for name, one in values["figures"].items()}
    flags = tuple(f"{one['kind'].replace('_', ' ')}: {one['text']}" for one in values["flags"])
    return ServingCell(values["prompt"], values["output"], load, figures, flags)
