"""Real tokens per second with and without packing, the contenders taking turns on one backend.

On JAX the seed's recipe, run by Tunix's own trainer, is one of them, and its gradient is held against ours on the same rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from crossmesh.data.batches import PackedBatch, Row
from crossmesh.data.packing import StepPlan, build_batch, packing_efficiency, plan_steps
from crossmesh.models.families import read_architecture
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.training import BackendSpec, BatchSpec, DataSpec, LoraSpec, OptimSpec, PackingSpec
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.worker import make_backend
from crossmesh.verify.differences import distance
from crossmesh.verify.gradient import GAIN, moved, plain_descent, second_gradient
from crossmesh.verify.measure import Progress, ratio, take_turns
from crossmesh.verify.rows import paper_lengths, random_rows

MODES = ("none", "step", "stream")
SEED_RECIPE = "seed_recipe"
_RATE, _DECAY = 1e-4, 1e-3
_STEPS = 200
"""Optimizer steps that are laid out; contenders go through them again and again."""


@dataclass(frozen=True)
class SpeedSizes:
    """What is trained on; the defaults are the check's."""

    limit: int = 384
    """Tokens of the longest row: an eighth of the paper's."""
    rows: int = 2000
    batch: int = 8
    """As the paper's: 8 sequences a step, one at a time."""
    steps: int = 3
    """Optimizer steps of a turn; of `stream`, whose steps hold more rows, as many as fill the same number of sequences as `step` does."""
    rounds: int = 7


def speed(backend_name: str, folder: Path, cache: Path, sizes: SpeedSizes, progress: Progress) -> dict[str, Any]:
    """Measure all contenders on the model in `folder`; see the module."""
    lengths = paper_lengths(sizes.rows, sizes.limit)
    rows = random_rows(lengths, read_architecture(folder).vocab)
    plans = {mode: plan_steps(lengths, _spec(backend_name, mode, sizes)) for mode in MODES}
    backend = make_backend(_spec(backend_name, "none", sizes))
    backend.init(TrainingSetup.of(_spec(backend_name, "none", sizes, steps=1 << 20), folder, cache / "compiled"))

    def train(batches: Sequence[PackedBatch]) -> None:
        for batch in batches:
            backend.step(batch)

    turns = {"none": sizes.steps, "step": sizes.steps, "stream": max(1, sizes.steps * 3 // sizes.batch)}
    contenders = {mode: _Contender(train, _batches(plans[mode], rows, sizes.limit), turns[mode]) for mode in MODES}
    measured: dict[str, Any] = {}
    if backend_name == "jax":
        recipe, measured = _seed_recipe(folder, cache, sizes, plans, rows)
        contenders[SEED_RECIPE] = _Contender(recipe, _batches(plans["none"], rows, sizes.limit), sizes.steps)
    seconds = take_turns(contenders, sizes.rounds, progress)
    rates = {name: contender.rates(seconds[name]) for name, contender in contenders.items()}
    return measured | {
        "tokens_per_s": {name: median(values) for name, values in rates.items()},
        "over_padding": {mode: ratio(rates[mode], rates["none"]).figures() for mode in ("step", "stream")},
        "over_seed_recipe": {mode: ratio(rates[mode], rates[SEED_RECIPE]).figures() for mode in MODES if SEED_RECIPE in rates},
        "packing_efficiency": {mode: packing_efficiency(plans[mode], lengths, sizes.limit) for mode in MODES},
        "lengths": {"mean": sum(lengths) / len(lengths), "p99": sorted(lengths)[len(lengths) * 99 // 100], "limit": sizes.limit},
        "seconds": seconds,
    }


class _Contender:
    """Takes the next batches of its mode each time it is called, and knows how many real tokens they held."""

    def __init__(self, train: Callable[[Sequence[PackedBatch]], None], batches: Iterator[PackedBatch], steps: int) -> None:
        self._train = train
        self._batches = batches
        self._steps = steps
        self._tokens: list[int] = []

    def __call__(self) -> None:
        batches = list(islice(self._batches, self._steps))
        self._train(batches)
        self._tokens.append(sum(batch.real_tokens for batch in batches))

    def rates(self, seconds: Sequence[float]) -> list[float]:
        """Real tokens per second of the last calls."""
        return [tokens / taken for tokens, taken in zip(self._tokens[-len(seconds) :], seconds, strict=True)]


def _spec(backend: str, mode: str, sizes: SpeedSizes, steps: int = _STEPS) -> ExperimentSpec:
    return ExperimentSpec(
        data=DataSpec(max_length=sizes.limit),
        batch=BatchSpec(size=sizes.batch, micro=1),
        packing=PackingSpec(mode),
        lora=LoraSpec(),
        optim=OptimSpec(steps=steps, learning_rate=_RATE, weight_decay=_DECAY),
        backend=BackendSpec(backend),
    )


def _batches(plans: Sequence[StepPlan], rows: Sequence[Row], limit: int) -> Iterator[PackedBatch]:
    return cycle([build_batch(plan, rows, 1, limit, 0) for plan in plans])


def _seed_recipe(
    folder: Path, cache: Path, sizes: SpeedSizes, plans: Mapping[str, Sequence[StepPlan]], rows: Sequence[Row]
) -> tuple[Callable[[Sequence[PackedBatch]], None], dict[str, Any]]:
    """The recipe ready to train, and how far its gradient is from ours on the rows of the first step."""
    from crossmesh.verify.stock_jax import SeedRecipe, adamw, descent

    spec = _spec("jax", "step", sizes)
    ours = make_backend(spec)
    ours.init(plain_descent(TrainingSetup.of(spec, folder, cache / "compiled")))
    gradient = second_gradient(ours, build_batch(plans["step"][0], rows, 1, sizes.limit, 0))
    together = build_batch(plans["none"][0], rows, sizes.batch, sizes.limit, 0)
    peer = SeedRecipe(folder, spec.lora, descent(GAIN), 1)
    peer.train([together])
    before = peer.adapter()
    peer.train([together])
    difference = distance(gradient, moved(before, peer.adapter()))
    return SeedRecipe(folder, spec.lora, adamw(_RATE, _DECAY), sizes.batch).train, {"gradient_difference": difference}
