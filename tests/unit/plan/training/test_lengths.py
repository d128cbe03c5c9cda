"""What a step computes, by the same code as a run: unpacked rows are as wide as they need, packed sequences as long as said."""

from dataclasses import replace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, BatchSpec, HardwareSpec, MeshSpec, OptimSpec, PackingSpec
from crossmesh.plan.training.lengths import filling
from plan_points import paper_spec

SPEC = paper_spec(optim=OptimSpec(steps=1244), plan=replace(paper_spec().plan, mean_tokens=922.0, p99_tokens=2553.0))
GPU = replace(SPEC, hardware=HardwareSpec("gpu_1xh100"), mesh=MeshSpec(fsdp=1), backend=BackendSpec("torch"))


def efficiency(spec: ExperimentSpec) -> float:
    found = filling(spec, (0,))
    assert sum(share for _, share in found.widths) == pytest.approx(1.0)
    assert all(width <= spec.sequence_length for width, _ in found.widths)
    assert found.computed >= found.tokens
    return found.tokens / found.computed


def test_unpacked_rows_on_torch_are_computed_at_their_own_length() -> None:
    assert efficiency(GPU) > 0.99  # Rounded up to 8.
    assert len(filling(GPU, (0,)).widths) == 8
    # Four at a time they are as wide as the longest of four, the rows of a step sorted.
    assert 0.7 < efficiency(replace(GPU, batch=BatchSpec(8, 4))) < 0.85


def test_unpacked_rows_on_jax_have_the_widths_of_a_run() -> None:
    assert len(filling(SPEC, (0,)).widths) == 4
    assert 0.7 < efficiency(SPEC) < 0.8
    short = replace(SPEC, optim=OptimSpec(steps=20))
    assert filling(short, (0,)).widths == ((3072, 1.0),)
    assert efficiency(short) == pytest.approx(0.30, abs=0.01)


def test_packed_sequences_on_jax_have_one_width_and_on_torch_their_own() -> None:
    stream = PackingSpec("stream")
    assert filling(replace(SPEC, packing=stream), (0,)).widths == ((3072, 1.0),)
    step = PackingSpec("step")
    assert efficiency(replace(GPU, packing=step)) > 0.98 > 0.9 > efficiency(replace(SPEC, packing=step)) > 0.7


def test_rows_that_are_known_count_in_place_of_the_plans() -> None:
    assert filling(GPU, (0,), [100] * 30).widths == ((104, 1.0),)
    assert filling(GPU, (0,), [100] * 30).tokens == pytest.approx(800)
