"""Real tokens per second with and without packing, the contenders taking turns on one backend.

On torch TRL's SFTTrainer is two of them: one row at a time, which pads nothing, and packed. On JAX the seed's recipe, run by Tunix's own
trainer, is one, and its gradient is held against ours on the same rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import COMPILES, BackendSpec, BatchSpec, DataSpec, LoraSpec, OptimSpec, PackingSpec
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.data.packing import StepPlan, build_batch, packing_efficiency, plan_steps
from crossmesh.models.families.registry import read_architecture
from crossmesh.train.backend import Backend, TrainingSetup
from crossmesh.train.worker import make_backend
from crossmesh.verify.differences import distance, loss_differences
from crossmesh.verify.measure import Progress, ratio, take_turns
from crossmesh.verify.packing.gradient import GAIN, moved, plain_descent, second_gradient
from crossmesh.verify.peers.work import DECAY, RATE
from crossmesh.verify.rows import paper_lengths, random_rows

MODES = ("none", "step", "stream")
SEED_RECIPE = "seed_recipe"
TRL_ALONE, TRL_PACKED = "trl_batch_1", "trl_packed"
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


def speed(backend_name: str, folder: Path, cache: Path, scratch: Path, sizes: SpeedSizes, progress: Progress) -> dict[str, Any]:
    """Measure all contenders on the model in `folder`; see the module."""
    lengths = paper_lengths(sizes.rows, sizes.limit)
    rows = random_rows(lengths, read_architecture(folder).vocab)
    plans = {mode: plan_steps(lengths, _spec(backend_name, mode, sizes)) for mode in MODES}
    backend = make_backend(_spec(backend_name, "none", sizes))
    backend.init(TrainingSetup.of(_spec(backend_name, "none", sizes, steps=1 << 20), folder, cache / "compiled"))
    losses: list[float] = []

    def train(batches: Sequence[PackedBatch]) -> None:
        losses.extend(backend.step(batch).loss for batch in batches)

    turns = {"none": sizes.steps, "step": sizes.steps, "stream": max(1, sizes.steps * 3 // sizes.batch)}
    # The first turn, of rows one by one, starts from the initial adapter: the peer's losses of it say that it does the same work.
    contenders: dict[str, _Contender] = {mode: _Batches(train, _batches(plans[mode], rows, sizes.limit), turns[mode]) for mode in MODES}
    measured: dict[str, Any] = {}
    if backend_name == "jax":
        padded = _at_full_length(plans["none"])  # As the recipe does.
        recipe, measured = _seed_recipe(folder, cache, sizes, {**plans, "none": padded}, rows)
        contenders[SEED_RECIPE] = _Batches(recipe, _batches(padded, rows, sizes.limit), sizes.steps)
    else:
        contenders |= (peers := _trl(folder, scratch, sizes, turns, plans["none"], rows))
    counted = {name: _Counted(contender) for name, contender in contenders.items()}
    seconds = take_turns(counted, sizes.rounds, progress)
    rates = {name: contender.rates(seconds[name]) for name, contender in counted.items()}
    if backend_name == "torch":
        measured = _beside_trl(rates) | {
            "loss_difference": max(loss_differences(peers[TRL_ALONE].losses[: sizes.steps], losses[: sizes.steps]))
        }
    return measured | {
        "tokens_per_s": {name: median(values) for name, values in rates.items()},
        "over_none": {mode: ratio(rates[mode], rates["none"]).figures() for mode in ("step", "stream")},
        "over_seed_recipe": {mode: ratio(rates[mode], rates[SEED_RECIPE]).figures() for mode in MODES if SEED_RECIPE in rates},
        # Of sequences of full length: how wide they are computed is another question.
        "packing_efficiency": {mode: packing_efficiency(_at_full_length(plans[mode]), lengths, sizes.limit) for mode in MODES},
        "lengths": {"mean": sum(lengths) / len(lengths), "p99": sorted(lengths)[len(lengths) * 99 // 100], "limit": sizes.limit},
        "seconds": seconds,
    }


def measure_compiled(folder: Path, scratch: Path, sizes: SpeedSizes, progress: Progress) -> dict[str, Any]:
    """The torch step with `backend.compile=layer` beside the same step without, unpacked and packed, and what compiling takes.

    Nothing of an earlier compilation is used.
    """
    lengths = paper_lengths(sizes.rows, sizes.limit)
    rows = random_rows(lengths, read_architecture(folder).vocab)
    modes, losses = ("none", "stream"), dict[str, list[float]]()
    contenders: dict[str, _Batches] = {}
    for how in COMPILES:
        spec = _spec("torch", "none", sizes, steps=1 << 20)
        spec = replace(spec, backend=replace(spec.backend, compile=how))
        backend = make_backend(spec)
        backend.init(TrainingSetup.of(spec, folder, scratch / "compiled"))
        for mode in modes:
            name = f"{mode}, {how}"
            losses[name] = []

            def train(batches: Sequence[PackedBatch], backend: Backend = backend, kept: list[float] = losses[name]) -> None:
                kept.extend(backend.step(batch).loss for batch in batches)

            batches = _batches(plan_steps(lengths, _spec("torch", mode, sizes)), rows, sizes.limit)
            contenders[name] = _Batches(train, batches, 1)
    first = take_turns(contenders, 1, progress, warm_up=0)
    seconds = take_turns(contenders, sizes.rounds * sizes.steps, progress)
    return {
        "eager_over_compiled_seconds": {mode: ratio(seconds[f"{mode}, none"], seconds[f"{mode}, layer"]).figures() for mode in modes},
        "compile_seconds": {mode: first[f"{mode}, layer"][0] - median(seconds[f"{mode}, layer"]) for mode in modes},
        "step_seconds": {name: median(values) for name, values in seconds.items()},
        "loss_difference": max(max(loss_differences(losses[f"{mode}, layer"], losses[f"{mode}, none"])) for mode in modes),
    }


def _beside_trl(rates: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Rows one by one beside TRL's one by one, packed ones beside whatever TRL is fastest with."""
    best = max((TRL_ALONE, TRL_PACKED), key=lambda name: median(rates[name]))
    beside = {"none": TRL_ALONE, "step": best, "stream": best}
    return {"over_trl": {mode: ratio(rates[mode], rates[peer]).figures() for mode, peer in beside.items()}, "trl_best": best}


_Contender = Callable[[], int]
"""Takes a turn and returns how many real tokens it held."""


class _Batches:
    """Takes the next batches of its mode each time it is called."""

    def __init__(self, train: Callable[[Sequence[PackedBatch]], None], batches: Iterator[PackedBatch], steps: int) -> None:
        self._train, self._batches, self._steps = train, batches, steps

    def __call__(self) -> int:
        batches = list(islice(self._batches, self._steps))
        self._train(batches)
        return sum(batch.real_tokens for batch in batches)


class _Counted:
    """Keeps what the turns of a contender held."""

    def __init__(self, contender: _Contender) -> None:
        self._contender = contender
        self._tokens: list[int] = []

    def __call__(self) -> None:
        self._tokens.append(self._contender())

    def rates(self, seconds: Sequence[float]) -> list[float]:
        """Real tokens per second of the last calls."""
        return [tokens / taken for tokens, taken in zip(self._tokens[-len(seconds) :], seconds, strict=True)]


def _spec(backend: str, mode: str, sizes: SpeedSizes, steps: int = _STEPS) -> ExperimentSpec:
    return ExperimentSpec(
        data=DataSpec(max_length=sizes.limit),
        batch=BatchSpec(size=sizes.batch, micro=1),
        packing=PackingSpec(mode),
        lora=LoraSpec(),
        optim=OptimSpec(steps=steps, learning_rate=RATE, final_fraction=1.0, warmup_steps=0, weight_decay=DECAY),
        backend=BackendSpec(backend),
    )


def _at_full_length(plans: Sequence[StepPlan]) -> list[StepPlan]:
    return [replace(plan, widths=()) for plan in plans]


def _batches(plans: Sequence[StepPlan], rows: Sequence[Row], limit: int) -> Iterator[PackedBatch]:
    return cycle([build_batch(plan, rows, 1, limit, 0) for plan in plans])


def _trl(
    folder: Path, scratch: Path, sizes: SpeedSizes, turns: Mapping[str, int], plans: Sequence[StepPlan], rows: Sequence[Row]
) -> dict[str, Any]:
    """TRL's trainer on the rows of `plans`, one at a time, and on the same rows packed by its own means."""
    from crossmesh.verify.peers.trl_torch import TrainerInTurns, example, pack_bfd

    lora, alone = LoraSpec(), [example(rows[index]) for index in chain.from_iterable(plan.rows for plan in plans)]
    packed = pack_bfd([example(row) for row in rows], sizes.limit)
    accumulated = {"gradient_accumulation_steps": sizes.batch}
    return {
        TRL_ALONE: TrainerInTurns(folder, lora, alone, scratch / TRL_ALONE, turns["none"], **accumulated),
        TRL_PACKED: TrainerInTurns(folder, lora, packed, scratch / TRL_PACKED, turns["stream"], padding_free=True, **accumulated),
    }


def _seed_recipe(
    folder: Path, cache: Path, sizes: SpeedSizes, plans: Mapping[str, Sequence[StepPlan]], rows: Sequence[Row]
) -> tuple[Callable[[Sequence[PackedBatch]], None], dict[str, Any]]:
    """The recipe ready to train, and how far its gradient is from ours on the rows of the first step."""
    from crossmesh.verify.peers.stock_jax import SeedRecipe, adamw, descent

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
    return SeedRecipe(folder, spec.lora, adamw(RATE, DECAY), sizes.batch).train, {"gradient_difference": difference}
