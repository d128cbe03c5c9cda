"""What a report is made from: frozen values, one `Variant` per model that was evaluated. Nothing is computed here but conversions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crossmesh.config.verdicts import MattersSpec
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text

if TYPE_CHECKING:
    from crossmesh.evaluate.results import EvalResult

PRIMARY_SPLIT = "heldout"
SPLIT_NAMES = {"heldout": "held-out", "hard": "unseen kinds"}
"""How a split is called where people read it; others keep their own name."""
SCOPES = ("science", "evaluation", "workload", "system", "server", "provenance", "surroundings")
"""The records of a run, what decides most first."""


@dataclass(frozen=True)
class RunRecord:
    """What decides whether a result may be set beside another. All values are JSON values."""

    name: str
    science: Mapping[str, Any] | None = None
    """What was learnt; None for a base model, which was not trained here."""
    system: Mapping[str, Any] | None = None
    """Settings that change speed and not what is learnt; None without training."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Library versions, container, git state, host."""
    evaluation: Mapping[str, Any] | None = None
    """Task digest, sampling, engine version and flags, dtype; None when not evaluated."""
    surroundings: Mapping[str, Any] | None = None
    """What was there when it was evaluated and decided no answer: host, versions, files by digest; None where that is not known."""
    workload: Mapping[str, Any] | None = None
    """What a benchmarked server was asked: prompts, lengths, sampling, state of its cache; None without a benchmark."""
    server: Mapping[str, Any] | None = None
    """What was benchmarked: model, dtype, KV dtype, engine version and flags."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints that are known already, by scope: of ten thousand runs most share their records."""

    def fingerprint(self, scope: str) -> str | None:
        """Return the SHA-256 of one record (a name of `SCOPES`), or None where there is none."""
        return self._fingerprints.get(scope)

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        """By scope; a record of a thousand steps is digested once."""
        found = {scope: getattr(self, scope) for scope in SCOPES}
        return {scope: self.digests.get(scope) or digest_text(canonical_json(value)) for scope, value in found.items() if value is not None}


@dataclass(frozen=True)
class Score:
    """pass@k on one split of a task, as a share of 0 to 1 with its interval."""

    split: str
    k: int
    value: float
    low: float
    high: float
    level: float
    method: str
    """How the interval was computed."""
    problems: int

    def __post_init__(self) -> None:
        """Check that the numbers are a share inside its interval."""
        if not (0.0 <= self.low <= self.value + 1e-9 and self.value <= self.high + 1e-9 and self.high <= 1.0):
            given = f"pass@{self.k} on {self.split!r} is {self.value} with interval {self.low} to {self.high}"
            raise InputError(f"{given}. Allowed: 0 <= low <= value <= high <= 1.")


@dataclass(frozen=True)
class TrainingSummary:
    """What a training run measured of itself."""

    losses: tuple[tuple[int, float], ...]
    """(step, loss in nats per loss token), by step; empty where the curves of many runs were not all read."""
    final_loss: float
    tokens_per_s: float | None
    """Real tokens, padding not counted; None for a run that never had all slices of its mesh (`mesh.min_dcn`)."""
    seconds: float
    """Wall clock of all steps, those that compile included; loading, checkpoints and export are not."""
    tokens: int
    """Real tokens trained on."""
    loss_tokens: int
    """Of them, tokens that count in the loss."""
    padded_tokens_per_s: float | None = None
    """Computed tokens, padding included."""
    mfu: float | None = None
    """Measured time against FLOP as the plan models them; None without a plan."""
    energy_wh: float | None = None
    """Of the accelerators, where their power was read."""
    rented_s: float | None = None
    """`seconds`, less the share of slices that it went on without; None: it had all of them."""
    added: Mapping[str, float] = field(default_factory=dict)
    """Metrics of installed packages, by name."""


@dataclass(frozen=True)
class ServingCell:
    """One load that a server was put under, and how it fared; None is what was not measured."""

    input_tokens: int
    """0: as a trace says."""
    output_tokens: int
    load: str
    """`QPS 4`, `concurrency 16`, `burst`, `trace`."""
    figures: Mapping[str, tuple[float, float | None, float | None]]
    """(value, low, high) by name: a key of `tables.quantities.SERVING`."""
    flags: tuple[str, ...] = ()
    """Why the cell is not plausible; a flagged cell enters no comparison."""

    @property
    def name(self) -> str:
        """What is told apart from other loads."""
        return f"{self.input_tokens}/{self.output_tokens} {self.load}" if self.input_tokens else self.load


@dataclass(frozen=True)
class Rent:
    """What the hardware of a run costs an hour, as published; `usd_per_hour` is None where `why` says why."""

    usd_per_hour: float | None
    basis: str = ""
    """Kind, source and date of the price, in words."""
    why: str = ""


EMULATED_RENT = Rent(None, why="emulated on CPU devices: no price")


@dataclass(frozen=True)
class Repeat:
    """The first steps of a training, taken once more beside those of the trainings that it is compared with."""

    round: str
    """Which round of which session: the repeats of one round ran one after the other."""
    steps: int
    """Steps that were taken."""
    tokens_per_s: float
    run_id: str = ""
    """Id of the run."""
    load: tuple[str, ...] = ()
    """What else kept the machine busy meanwhile; a repeat under load decides nothing."""


@dataclass(frozen=True)
class Said:
    """One answer as a page shows it: shortened, with its verdict. Text of a model: never trusted."""

    text: str
    passed: bool
    reason: str
    """Of the verdict."""


@dataclass(frozen=True)
class Variant:
    """One model of the comparison: the base, or the base with an adapter that one backend trained."""

    name: str
    backend: str | None
    record: RunRecord
    scores: tuple[Score, ...] = ()
    training: TrainingSummary | None = None
    adapter_bytes: int | None = None
    run_id: str | None = None
    """Id of the run."""
    rent: Rent = Rent(None, why="not trained")
    """Of what trained it."""
    serving: tuple[ServingCell, ...] = ()
    serving_rent: Rent = Rent(None, why="no benchmark of a server with it")
    """Of what served it."""
    planned: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    """What the plan said before the run, and by what, modelled or compiled, by key of a quantity."""
    answers: Mapping[str, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    """(samples, passed) by problem by split: what two models are compared on problem by problem."""
    said: Mapping[str, Said] = field(default_factory=dict)
    """The first answer to each problem; empty where many models are compared."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What lm-evaluation-harness says, by `task/metric,filter`."""
    repeats: tuple[Repeat, ...] = ()
    """Of its first steps."""
    load: tuple[str, ...] = ()
    """What else kept the machine busy while it was trained."""
    marked_emulated: bool = False
    """Whether the run's tags or parameters say that it computed on CPU devices under the name of other hardware."""
    serving_emulated: bool = False
    """The same of what served it."""

    @cached_property
    def emulated(self) -> bool:
        """Whether its training was emulated, by any of its records."""
        return self.marked_emulated or bool((self.record.system or {}).get("emulated"))

    @property
    def rows(self) -> int | None:
        """Rows trained on, each as often as it was; None where the record does not say."""
        steps = (self.record.science or {}).get("steps")
        return sum(map(len, steps)) if isinstance(steps, list) and set(map(type, steps)) <= {list} else None

    @property
    def usd(self) -> float | None:
        """Price of the time of all steps; None without one."""
        if self.training is None or self.rent.usd_per_hour is None:
            return None
        return (self.training.seconds if self.training.rented_s is None else self.training.rented_s) / 3600 * self.rent.usd_per_hour

    def score(self, split: str, k: int = 1) -> Score | None:
        """Return pass@k on a split, or None when it was not measured."""
        return next((score for score in self.scores if score.split == split and score.k == k), None)


@dataclass(frozen=True)
class Results:
    """Everything a report shows."""

    experiment: str
    variants: tuple[Variant, ...]
    """In the order they are shown; a base model first."""
    command: str
    """What to type to get these results again."""
    ui_command: str = ""
    """What to type to look at the runs."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    hours: tuple[float, ...] = (1.0, 8.0, 24.0)
    """Hours of serving that total costs are given for."""
    qps: float = 0.0
    """Requests a second that a system must answer within the SLO in total costs; 0: one engine, whatever it sustains."""
    matters: MattersSpec = field(default_factory=MattersSpec)
    """The smallest differences that matter."""
    where: tuple[str, ...] = ()
    """Arguments of a job that say where the runs are kept; empty: where they are by default."""

    def __post_init__(self) -> None:
        """Check that names are distinct and there is something to show."""
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) != len(names):
            raise InputError(f"A report needs variants with distinct names. Given: {names}.")

    @cached_property
    def trained(self) -> tuple[Variant, ...]:
        """Variants that were trained here."""
        return tuple(variant for variant in self.variants if variant.training is not None)

    @cached_property
    def timed(self) -> tuple[Variant, ...]:
        """Trained variants whose times may be shown: an emulated one's say nothing beside a real one's."""
        real = tuple(variant for variant in self.trained if not variant.emulated)
        return real or self.trained

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Splits that any variant was evaluated on, the primary one first."""
        seen = dict.fromkeys(score.split for variant in self.variants for score in variant.scores)
        return tuple(sorted(seen, key=lambda split: split != PRIMARY_SPLIT))


def scores_of(result: "EvalResult") -> tuple[Score, ...]:
    """Return an evaluation's estimates as scores of a variant."""
    return tuple(
        Score(split.split, one.k, one.value, one.low, one.high, one.level, one.method, split.problems)
        for split in result.splits
        for one in split.pass_at_k
    )


def answers_of(result: "EvalResult") -> dict[str, Mapping[str, tuple[int, int]]]:
    """Return (answers, right answers) by problem by split."""
    return {one.split: one.counts for one in result.splits}


def split_name(split: str) -> str:
    """Return how a split is called where people read it."""
    return SPLIT_NAMES.get(split, split)


def finite(value: float | None) -> float | None:
    """Return `value`, or None for what JSON cannot hold (NaN, infinity)."""
    return value if value is not None and math.isfinite(value) else None
