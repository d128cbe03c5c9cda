"""Widths of micro-batches: every row fits, few programs, as little padding as so few allow."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, HardwareSpec, MeshSpec, OptimSpec, PackingSpec
from crossmesh.data.packing import packing_efficiency, plan_steps
from crossmesh.data.widths import MOST_WIDTHS, Widths, by_length, choose_buckets, widths_of


def spec_of(backend: str = "jax", mode: str = "none", *, limit: int = 384, steps: int = 1000, hardware: str = "cpu") -> ExperimentSpec:
    return ExperimentSpec(
        data=DataSpec(max_length=limit),
        batch=BatchSpec(8, 1),
        optim=OptimSpec(steps=steps),
        packing=PackingSpec(mode),
        hardware=HardwareSpec(hardware),
        mesh=MeshSpec(fsdp=1, tp=-1),
        backend=BackendSpec(backend),
    )


def lengths_of(count: int, limit: int) -> list[int]:
    values = np.random.default_rng(0).lognormal(6.703, 0.489, 2 * count) * limit / 3072
    return [int(value) for value in values if 1 <= value <= limit][:count]


def test_torch_computes_what_is_there() -> None:
    assert widths_of([5, 9], spec_of("torch")) == Widths(384)
    on_gpu = widths_of([5, 9], spec_of("torch", hardware="gpu_1xh100"))
    assert [on_gpu.of(tokens) for tokens in (0, 1, 8, 9, 383, 384)] == [8, 8, 8, 16, 384, 384]


def test_no_width_is_over_the_length_of_a_sequence() -> None:
    assert Widths(30, 8).of(29) == 30


@pytest.mark.parametrize("mode", ["step", "stream"])
def test_packed_sequences_have_one_width_on_jax(mode: str) -> None:
    assert widths_of([5, 9], spec_of("jax", mode)) == Widths(384, buckets=(384,))


@given(
    needed=st.lists(st.integers(1, 100), min_size=1, max_size=30),
    more=st.integers(0, 20),
    lanes=st.sampled_from([1, 8]),
    most=st.integers(1, 4),
)
def test_no_other_so_few_widths_pad_less(needed: list[int], more: int, lanes: int, most: int) -> None:
    longest = min(100, max(needed) + more)
    found = choose_buckets(tuple(needed), longest, 100, lanes, most)
    assert found == tuple(sorted(set(found)))
    assert len(found) <= most
    assert longest <= found[-1] <= 100

    def computed(buckets: tuple[int, ...]) -> int:
        return sum(min(bucket for bucket in buckets if bucket >= tokens) for tokens in needed)

    grain = -(-100 // (16 * lanes)) * lanes
    possible = sorted({min(100, size) for size in range(grain, 100 + grain, grain)})
    last = min(size for size in possible if size >= longest)
    others = [size for size in possible if size < last]
    best = min(computed((*chosen, last)) for count in range(most) for chosen in combinations(others, count))
    assert computed(found) == best


def test_programs_are_few_and_earn_their_compilation() -> None:
    lengths = lengths_of(2000, 384)
    found = {steps: widths_of(lengths, spec_of(steps=steps)).buckets for steps in (10, 50, 100, 1000, 10_000)}
    assert [len(buckets) for buckets in found.values()] == [1, 2, 3, MOST_WIDTHS, MOST_WIDTHS]
    assert all(width % 8 == 0 for buckets in found.values() for width in buckets)
    on_tpu = widths_of(lengths_of(2000, 3072), spec_of(limit=3072, hardware="tpu_v5p_8")).buckets
    assert all(width % 128 == 0 for width in on_tpu)


def test_four_widths_leave_a_quarter_of_padding_where_one_leaves_two_thirds() -> None:
    lengths = lengths_of(2000, 384)
    plans = plan_steps(lengths, spec_of(steps=300))
    assert packing_efficiency(plans, lengths, 384) == pytest.approx(0.76, abs=0.02)
    padded = [dataclasses.replace(plan, widths=()) for plan in plans]
    assert packing_efficiency(padded, lengths, 384) == pytest.approx(0.30, abs=0.02)


def test_widths_do_not_depend_on_where_a_run_ends() -> None:
    lengths, spec = lengths_of(500, 384), spec_of(steps=200)
    ended = dataclasses.replace(spec, optim=OptimSpec(steps=200, stop_at=10))
    assert plan_steps(lengths, ended) == plan_steps(lengths, spec)[:10]


def test_similar_lengths_share_a_micro_batch() -> None:
    assert by_length([0, 1, 2, 3], [5, 40, 7, 38], 2) == [[1, 3], [2, 0]]
