"""Packing leaves nothing out, puts nothing in twice, overfills nothing, and fills well; the arrays say where each row lies."""

import dataclasses
from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, HardwareSpec, MeshSpec, OptimSpec, PackingSpec
from crossmesh.data.batches import PackedBatch, Row
from crossmesh.data.order import row_stream, step_rows
from crossmesh.data.packing import StepPlan, build_batch, efficiencies, first_fit_decreasing, packing_efficiency, plan_steps
from crossmesh.errors import InputError

LENGTHS = st.lists(st.integers(1, 32), min_size=1, max_size=40)


def spec_of(
    mode: str, *, size: int = 4, micro: int = 2, ways: int = 1, steps: int = 6, length: int = 0, window: int = 16
) -> ExperimentSpec:
    return ExperimentSpec(
        data=DataSpec(max_length=32),
        batch=BatchSpec(size, micro),
        optim=OptimSpec(steps=steps),
        packing=PackingSpec(mode, length, window),
        mesh=MeshSpec(fsdp=ways),
        hardware=HardwareSpec(cpu_devices=ways),
    )


def paper_lengths(count: int) -> list[int]:
    """Shaped like the paper's rows (mean 922, 99th percentile 2553, limit 3072), at a twelfth."""
    values = np.random.default_rng(0).lognormal(6.703, 0.533, 2 * count) / 12
    return [int(value) for value in values if 1 <= value <= 256][:count]


@given(lengths=LENGTHS, capacity=st.integers(32, 100))
def test_first_fit_decreasing_places_each_item_once_and_needs_no_bin_that_could_be_merged(lengths: list[int], capacity: int) -> None:
    bins = first_fit_decreasing(lengths, capacity)
    assert sorted(chain.from_iterable(bins)) == list(range(len(lengths)))
    filled = [sum(lengths[item] for item in items) for items in bins]
    assert max(filled) <= capacity
    assert len(bins) <= len(lengths)
    # No two bins would fit into one: the later one's items had no room in the earlier.
    assert sum(amount <= capacity / 2 for amount in filled) <= 1


def test_first_fit_decreasing_of_known_lengths() -> None:
    assert first_fit_decreasing([2, 7, 3, 5, 3], 10) == [[1, 2], [3, 4, 0]]


@given(lengths=LENGTHS, size=st.sampled_from([4, 8]), ways=st.sampled_from([1, 2]), length=st.sampled_from([0, 50]))
def test_step_packing_keeps_the_rows_of_each_step(lengths: list[int], size: int, ways: int, length: int) -> None:
    spec = spec_of("step", size=size, ways=ways, length=length)
    plans = plan_steps(lengths, spec)
    assert [list(plan.rows) for plan in plans] == step_rows(len(lengths), size, 6, spec.data.seed)
    for plan in plans:
        assert Counter(chain.from_iterable(plan.sequences)) == Counter(plan.rows)
        assert all(sum(lengths[row] for row in rows) <= spec.sequence_length for rows in plan.sequences)
        assert len(plan.sequences) % (2 * ways) == 0
        assert len(plan.sequences) <= size


@given(lengths=LENGTHS)
def test_without_packing_each_row_has_its_own_sequence(lengths: list[int]) -> None:
    for plan in plan_steps(lengths, spec_of("none")):
        assert len(plan.rows) == len(plan.sequences) == 4
        assert Counter(chain.from_iterable(plan.sequences)) == Counter(plan.rows)
        # Rows of similar length share a micro-batch of 2, which is as wide as its longest.
        alone = [lengths[row] for (row,) in plan.sequences]
        assert alone == sorted(alone, reverse=True)
        assert plan.widths == (alone[0], alone[2])


@given(lengths=LENGTHS, window=st.integers(1, 60), steps=st.integers(1, 8), seed=st.integers(0, 3))
def test_stream_packing_uses_the_stream_once_and_lets_nothing_wait_for_ever(lengths: list[int], window: int, steps: int, seed: int) -> None:
    spec = dataclasses.replace(spec_of("stream", steps=steps, window=window), data=DataSpec(max_length=32, seed=seed))
    plans = plan_steps(lengths, spec)
    sequences = [rows for plan in plans for rows in plan.sequences]
    assert len(sequences) == 4 * steps
    assert all(rows and sum(lengths[row] for row in rows) <= 32 for rows in sequences)
    used = Counter(chain.from_iterable(sequences))
    stream = list(islice(row_stream(len(lengths), seed), used.total() + min(window, len(lengths))))
    assert used <= Counter(stream)
    # Each sequence takes the row that has waited longest, so the first so many of the stream are all there.
    assert Counter(stream[: len(sequences)]) <= used
    assert all(plan.rows == tuple(chain.from_iterable(plan.sequences)) for plan in plans)


@pytest.mark.parametrize("mode", ["none", "step", "stream"])
def test_fewer_steps_are_a_prefix_of_more(mode: str) -> None:
    lengths = [1 + index * 7 % 32 for index in range(23)]
    assert plan_steps(lengths, spec_of(mode, steps=9))[:5] == plan_steps(lengths, spec_of(mode, steps=5))


def test_efficiency_on_lengths_shaped_like_the_papers() -> None:
    lengths = paper_lengths(4000)
    assert np.mean(lengths) == pytest.approx(922 / 12, rel=0.03)
    assert np.percentile(lengths, 99) == pytest.approx(2553 / 12, rel=0.06)
    spec = dataclasses.replace(spec_of("step", size=32, micro=1, steps=100, window=512), data=DataSpec(max_length=256))
    found = efficiencies(lengths, spec)
    # On torch, one sequence at a time, nothing is padded; JAX has a few widths for rows, and one for packed sequences.
    assert found == {"none": 1.0, "step": 1.0, "stream": 1.0}
    few = efficiencies(lengths, dataclasses.replace(spec, backend=BackendSpec("jax")))
    assert 0.65 < few["none"] < 0.75
    assert few["step"] > 0.88
    assert few["stream"] > 0.995


def test_efficiency_counts_empty_sequences() -> None:
    assert packing_efficiency([StepPlan((0, 1), ((0, 1), ()))], [3, 2], 10) == 0.25
    assert packing_efficiency([StepPlan((0, 1), ((0, 1), ()), (5,))], [3, 2], 10) == 0.5
    assert packing_efficiency([StepPlan((0, 1, 2, 1), ((0,), (1,), (2,), (1,)), (8, 2))], [8, 2, 2], 10) == 14 / 20


def test_stream_steps_are_not_sorted_by_length() -> None:
    lengths = paper_lengths(2000)
    spec = dataclasses.replace(spec_of("stream", size=8, steps=40, window=512), data=DataSpec(max_length=256))
    means = [np.mean([lengths[row] for row in plan.rows]) for plan in plan_steps(lengths, spec)]
    assert abs(np.mean(means[:20]) / np.mean(means[20:]) - 1) < 0.1


def test_a_batch_says_where_each_row_lies() -> None:
    def row(name: str, *tokens: int) -> Row:
        return Row(name, np.array(tokens, np.int32), np.ones(len(tokens), np.bool_))

    rows = [row("a", 5, 6, 7), row("b", 8, 9), row("c", 4)]
    batch = build_batch(StepPlan((0, 2, 1), ((2, 0), (1,), (), ())), rows, 2, 6, 0)
    assert batch.row_ids == ("a", "c", "b")
    assert batch.tokens.tolist() == [[[4, 5, 6, 7, 0, 0], [8, 9, 0, 0, 0, 0]], [[0] * 6, [0] * 6]]
    assert batch.segment_ids.tolist() == [[[1, 2, 2, 2, 0, 0], [1, 1, 0, 0, 0, 0]], [[0] * 6, [0] * 6]]
    assert batch.positions.tolist() == [[[0, 0, 1, 2, 0, 0], [0, 1, 0, 0, 0, 0]], [[0] * 6, [0] * 6]]
    # The first token of a row is never predicted, least of all from the row before it.
    assert batch.loss_mask[0].astype(int).tolist() == [[0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]]
    assert (batch.loss_tokens, batch.real_tokens, batch.padded_tokens) == (3, 6, 24)
    assert batch.tokens.dtype == batch.positions.dtype == batch.segment_ids.dtype == np.int32


def test_a_batch_is_as_wide_as_its_widest_micro_batch_and_counts_what_is_computed() -> None:
    rows = [Row(str(length), np.arange(1, length + 1, dtype=np.int32), np.ones(length, np.bool_)) for length in (5, 3, 2, 2)]
    plan = StepPlan((0, 1, 2, 3), ((0,), (1,), (2,), (3,)), (5, 2))
    batch = build_batch(plan, rows, 2, 100, 0)
    assert batch.tokens.shape == (2, 2, 5)
    assert batch.widths == (5, 2)
    assert (batch.real_tokens, batch.padded_tokens) == (12, 14)
    assert not batch.segment_ids[1, :, 2:].any()
    one = build_batch(dataclasses.replace(plan, widths=(8,)), rows, 2, 100, 0)
    assert (one.tokens.shape, one.widths, one.padded_tokens) == ((2, 2, 8), (), 32)


def test_a_token_is_named_by_its_row_and_position_wherever_it_lies() -> None:
    def row(name: str, length: int) -> Row:
        return Row(name, np.arange(length, dtype=np.int32), np.ones(length, np.bool_))

    rows = [row("a", 3), row("b", 2), row("a", 3)]
    apart = build_batch(StepPlan((0, 1, 2), ((0,), (1,), (2,))), rows, 1, 4, 0)
    together = build_batch(StepPlan((0, 1, 2), ((1, 2), (0,))), rows, 2, 6, 0)

    def named(batch: PackedBatch) -> list[tuple[int, int, int]]:
        real = batch.segment_ids > 0
        return sorted(zip(batch.row_keys[real].tolist(), batch.positions[real].tolist(), batch.tokens[real].tolist(), strict=True))

    assert named(apart) == named(together)
    assert len(set(named(apart))) == 8  # the same row twice in a step is two rows
    assert (apart.row_keys == 0).tolist() == (apart.segment_ids == 0).tolist()
    assert apart.row_keys.dtype == np.uint32


@pytest.mark.parametrize("mode", ["none", "step", "stream"])
def test_no_rows(mode: str) -> None:
    with pytest.raises(InputError, match="row_count=0 is not possible"):
        plan_steps([], spec_of(mode))
