"""The packing check's parts, with backends that are a few lines of numpy: what it measures, and that it can fail."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BatchSpec, DataSpec, LoraSpec, OptimSpec, PackingSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.data.packing import StepPlan, plan_steps
from crossmesh.train.backend import StepMetrics, TrainingSetup
from crossmesh.train.schedule import learning_rate
from crossmesh.verify.packing import exact as packing_exact
from crossmesh.verify.packing import speed as packing_speed
from crossmesh.verify.packing.check import judge_packing
from crossmesh.verify.packing.gradient import plain_descent, second_gradient
from crossmesh.verify.rows import PAPER_LIMIT, paper_lengths, random_rows


def test_lengths_are_the_papers():
    lengths = sorted(paper_lengths(10_000, PAPER_LIMIT))
    assert np.mean(lengths) == pytest.approx(922, rel=0.015)
    # Of all rows 99.66% are within the limit, and only those are drawn.
    assert lengths[round(9_900 / 0.9966)] == pytest.approx(2553, rel=0.02)
    assert lengths[-1] <= PAPER_LIMIT


def test_a_lower_limit_keeps_the_shares_of_padding_and_the_order_is_mixed():
    small, large = paper_lengths(2_000, 384), paper_lengths(2_000, PAPER_LIMIT)
    assert np.mean(small) / 384 == pytest.approx(np.mean(large) / PAPER_LIMIT, rel=0.01)
    assert min(small) >= 4
    assert np.mean(small[:100]) == pytest.approx(np.mean(small), rel=0.1)


@pytest.mark.parametrize(("mode", "efficiency"), [("none", (0.28, 0.31)), ("step", (0.75, 0.85)), ("stream", (0.98, 1.0))])
def test_packing_fills_sequences_as_the_bounds_suppose(mode, efficiency):
    lengths = paper_lengths(2_000, 384)
    spec = ExperimentSpec(data=DataSpec(max_length=384), batch=BatchSpec(8, 1), packing=PackingSpec(mode), optim=OptimSpec(steps=60))
    plans = plan_steps(lengths, spec)
    filled = sum(lengths[row] for plan in plans for row in plan.rows) / (384 * sum(len(plan.sequences) for plan in plans))
    assert efficiency[0] <= filled <= efficiency[1]


def test_every_row_has_loss_on_its_last_tokens():
    for row in random_rows([4, 100], 512):
        assert row.loss_mask.sum() == max(1, round(0.15 * len(row.tokens)))
        assert row.loss_mask[-1]
        assert row.tokens.max() < 512


class Attention:
    """A `model` whose loss of a token is the distance to the mean of what precedes it in its row, or, leaking, in its sequence."""

    rank = 0

    def __init__(self, leaks: bool) -> None:
        self.leaks = leaks

    def init(self, setup: TrainingSetup) -> None:
        self.steps = 0

    def step(self, batch: PackedBatch) -> StepMetrics:
        self.steps += 1
        return self.evaluate(batch)

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        total = 0.0
        for place in zip(*np.nonzero(batch.loss_mask), strict=True):
            micro, sequence, position = place
            seen = np.arange(batch.tokens.shape[-1]) < position
            segments = batch.segment_ids[micro, sequence]
            seen &= segments > 0 if self.leaks else segments == segments[position]
            total += abs(batch.tokens[place] - batch.tokens[micro, sequence][seen].mean()) / 100
        return StepMetrics(total / batch.loss_tokens, 0.0, 0.0, batch.loss_tokens)


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Path:
    from crossmesh.models.weights.random_weights import write_random

    write_random("tiny_llama@0", tmp_path)
    return tmp_path


@pytest.mark.parametrize("leaks", [False, True])
def test_a_backend_that_mixes_packed_rows_is_found_out(leaks, tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(packing_exact, "make_backend", lambda spec: Attention(leaks))
    found = packing_exact.exactness("torch", tiny_folder, tmp_path)
    assert found["tokens"] == sum(len(range(1, size, 6)) for size in (61, 33, 20, 40, 17, 9))
    assert bool(found["difference"] > 0.1) is leaks
    assert found["difference_when_rows_mix"] > 0.1


def test_addresses_follow_the_plan():
    rows = random_rows([6, 9], 512)
    where = dict(packing_exact.token_addresses(StepPlan((0, 1), ((1, 0), ())), rows))
    assert where == {(1, 1): (0, 0, 1), (1, 7): (0, 0, 7), (0, 1): (0, 0, 10)}


def test_small_losses_differ_absolutely_and_large_ones_relatively():
    assert packing_exact.largest_difference({(0, 1): 0.5, (0, 5): 20.0}, {(0, 1): 0.25, (0, 5): 16.0}) == 0.25


class Adam:
    """AdamW as both frameworks compute it, on half the squared distance to a target."""

    rank = 0

    def init(self, setup: TrainingSetup) -> None:
        self.optim, self.count = setup.optim, 0
        self.weight = np.array([1.0, -2.0, 3.0], np.float32)
        self.target = np.array([0.5, 4.0, 3.0], np.float32)
        self.mean, self.square = np.zeros(3, np.float32), np.zeros(3, np.float32)

    def step(self, batch: PackedBatch) -> StepMetrics:
        optim, gradient = self.optim, self.weight - self.target
        self.count += 1
        self.mean = optim.beta1 * self.mean + (1 - optim.beta1) * gradient
        self.square = optim.beta2 * self.square + (1 - optim.beta2) * gradient**2
        root = np.sqrt(self.square / (1 - optim.beta2**self.count))
        update = self.mean / (1 - optim.beta1**self.count) / (root + optim.epsilon) + optim.weight_decay * self.weight
        self.weight = (self.weight - learning_rate(self.count - 1, optim) * update).astype(np.float32)
        return StepMetrics(0.0, 0.0, 0.0, 1)

    def export(self):
        return {"w": self.weight.copy()}


def test_the_gradient_is_taken_out_of_a_step_after_a_first_one(tmp_path):
    setup = TrainingSetup.of(ExperimentSpec(lora=LoraSpec(rank=2)), tmp_path, tmp_path)
    backend = Adam()
    backend.init(plain_descent(replace(setup, optim=OptimSpec(weight_decay=0.5))))
    start, target = backend.weight, backend.target
    found = second_gradient(backend, None)
    after_one = start - 0.1 * (start - target)
    np.testing.assert_allclose(found["w"], after_one - target, rtol=1e-5, atol=1e-6)


def test_trl_is_taken_at_its_best():
    rates = {"none": [100.0, 90.0], "step": [150.0] * 2, "stream": [220.0] * 2, "trl_batch_1": [100.0, 100.0], "trl_packed": [200.0] * 2}
    beside = packing_speed._beside_trl(rates)
    assert beside["trl_best"] == "trl_packed"
    assert {mode: one["median"] for mode, one in beside["over_trl"].items()} == pytest.approx({"none": 0.95, "step": 0.75, "stream": 1.1})
    beside = packing_speed._beside_trl(rates | {"trl_packed": [50.0] * 2})
    assert (beside["trl_best"], beside["over_trl"]["stream"]["median"]) == ("trl_batch_1", 2.2)


def measured(**changes):
    ratio = {"median": 4.5}
    speed = {"over_none": {"step": ratio, "stream": ratio}, "packing_efficiency": {"stream": 0.99}}
    exact = {"llama": {"difference": 1e-6, "difference_when_rows_mix": 1.0}}
    jax = {**speed, "over_seed_recipe": {"stream": ratio}, "gradient_difference": 1e-6}
    torch = {**speed, "over_trl": {"none": ratio, "step": ratio, "stream": ratio}, "loss_difference": 1e-5}
    found = {"torch": {"exact": exact, "speed": torch, "compiled": {"loss_difference": 1e-6}}, "jax": {"exact": exact, "speed": jax}}
    for backend, part, change in changes.values():
        found[backend] = {**found[backend], part: {**found[backend][part], **change}}
    return found


@pytest.mark.parametrize(
    ("backend", "part", "change", "broken"),
    [
        ("torch", "exact", {"gemma4": {"difference": 2e-5, "difference_when_rows_mix": 1.0}}, "torch.token_loss_difference"),
        ("jax", "exact", {"gemma4": {"difference": 0.0, "difference_when_rows_mix": 0.0}}, "jax.seen_when_rows_mix"),
        ("torch", "speed", {"over_trl": {"none": {"median": 0.96}, "stream": {"median": 1.1}}}, "torch.none_over_trl"),
        ("torch", "speed", {"over_trl": {"none": {"median": 1.1}, "stream": {"median": 0.99}}}, "torch.stream_over_trl"),
        ("torch", "compiled", {"loss_difference": 2e-5}, "torch.compiled_loss_difference"),
        ("torch", "speed", {"loss_difference": 2e-3}, "torch.loss_difference_to_trl"),
        ("torch", "speed", {"over_none": {"stream": {"median": 0.9}}}, "torch.stream_over_none"),
        ("jax", "speed", {"over_none": {"stream": {"median": 0.9}}}, "jax.stream_over_none"),
        ("torch", "speed", {"packing_efficiency": {"stream": 0.97}}, "torch.stream_efficiency"),
        ("jax", "speed", {"over_seed_recipe": {"stream": {"median": 3.9}}}, "jax.stream_over_seed_recipe"),
        ("jax", "speed", {"gradient_difference": 2e-4}, "jax.gradient_difference_to_seed_recipe"),
    ],
)
def test_each_bound_can_break_the_check(backend, part, change, broken):
    assert judge_packing(measured(), {}).passed
    result = judge_packing(measured(one=(backend, part, change)), {})
    assert [limit.name for limit in result.limits if not limit.passed] == [broken]
