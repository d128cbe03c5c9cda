"""What a report is made from: frozen values, one `Variant` per model that was evaluated. Nothing is computed here but conversions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_text

if TYPE_CHECKING:
    from crossmesh.evaluate.harness import EvalResult

PRIMARY_SPLIT = "heldout"
SPLIT_NAMES = {"heldout": "held-out", "hard": "unseen kinds"}
"""How a split is called where people read it; others keep their own name."""


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

    def fingerprint(self, scope: str) -> str | None:
        """Return the SHA-256 of one record (`science`, `system`, `provenance`, `evaluation`), or None where there is none."""
        value = getattr(self, scope)
        return None if value is None else digest_text(canonical_json(value))


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
    """(step, loss in nats per loss token), by step."""
    final_loss: float
    tokens_per_s: float
    """Real tokens, padding not counted, over all steps."""
    seconds: float
    """Wall clock of all steps, those that compile included; loading, checkpoints and export are not."""
    tokens: int
    """Real tokens trained on."""
    loss_tokens: int
    """Of them, tokens that count in the loss."""


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
    """MLflow run."""

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
    """What to type to look at the runs in MLflow."""

    def __post_init__(self) -> None:
        """Check that names are distinct and there is something to show."""
        names = [variant.name for variant in self.variants]
        if not names or len(set(names)) != len(names):
            raise InputError(f"A report needs variants with distinct names. Given: {names}.")

    @property
    def trained(self) -> tuple[Variant, ...]:
        """Variants that were trained here."""
        return tuple(variant for variant in self.variants if variant.training is not None)

    @property
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


def split_name(split: str) -> str:
    """Return how a split is called where people read it."""
    return SPLIT_NAMES.get(split, split)


def finite(value: float | None) -> float | None:
    """Return `value`, or None for what JSON cannot hold (NaN, infinity)."""
    return value if value is not None and math.isfinite(value) else None
