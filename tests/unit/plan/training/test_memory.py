"""Memory of a step against counts by hand and against a compiler's figures."""

import pytest

from crossmesh.config.training import ModelSpec
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.plan.training.lengths import Filling
from crossmesh.plan.training.memory import kept_bytes, scores_bytes, training_memory
from plan_points import MODEL, paper_point

SLIDING = 2 * 5376 * 32 * 256 + 2 * 5376 * 16 * 256 + 3 * 5376 * 21504
"""Parameters of a sliding layer's projections: q and o, k and v, gate, up and down."""
GLOBAL = 2 * 5376 * 32 * 512 + 5376 * 4 * 512 + 3 * 5376 * 21504
"""Of a global layer's: k makes the values as well."""


def test_parameters_by_hand() -> None:
    # Norms: 4 of the hidden size and two of a head in each layer, one at the end; a scale a layer. The embedding is tied.
    norms = 50 * (4 * 5376 + 2 * 256 + 1) + 10 * (4 * 5376 + 2 * 512 + 1) + 5376
    assert MODEL.parameters == 50 * SLIDING + 10 * GLOBAL + 262_144 * 5376 + norms
    sliding = 64 * (2 * (5376 + 8192) + 2 * (5376 + 4096) + 3 * (5376 + 21504))
    whole = 64 * (2 * (5376 + 16384) + (5376 + 2048) + 3 * (5376 + 21504))
    assert MODEL.adapter_parameters == 50 * sliding + 10 * whole


def test_weights_are_split_over_tp_and_fsdp() -> None:
    on_tp, on_both = training_memory(paper_point()), training_memory(paper_point(mesh=MeshShape(1, 2, 2)))
    assert on_tp.weights == pytest.approx(2 * MODEL.parameters / 4, rel=1e-3)
    assert on_both.weights == pytest.approx(on_tp.weights, rel=1e-3)
    in_four_bits = training_memory(paper_point(spec=ModelSpec(family="gemma4", dtype="bfloat16", quantization="nf4")))
    assert in_four_bits.weights == pytest.approx((50 * SLIDING + 10 * GLOBAL) * (0.5 + 4 / 64) / 4 + 2 * 262_144 * 5376 / 4, rel=1e-3)


def test_a_layer_keeps_its_input_or_all_it_needs() -> None:
    point = paper_point()
    sliding = next(work for work in MODEL.layers if work.layer.window)
    assert kept_bytes(point, sliding, "layer") == 2 * 5376
    # 4 hidden; q, k, v, attention's result, gate and up over 4 ranks; what LoRA makes between A and B.
    assert kept_bytes(point, sliding, "none") == 2 * (4 * 5376 + (16384 + 8192 + 2 * 21504) / 4 + 7 * 64)
    assert kept_bytes(point, sliding, "layer") < kept_bytes(point, sliding, "dots") < kept_bytes(point, sliding, "none")
    assert training_memory(point).activations == 3072 * 60 * 2 * 5376


def test_scores_are_stored_by_the_plain_kernel_only() -> None:
    assert scores_bytes(paper_point()) == 4 * 8 * 3072**2
    assert scores_bytes(paper_point(attention="splash")) == 0


def test_optimizer_and_gradients_are_float32_of_the_adapter() -> None:
    memory = training_memory(paper_point(slice=find_slice("gpu_1xh100"), backend="torch", mesh=MeshShape(1, 1, 1)))
    assert (memory.adapter, memory.optimizer, memory.gradients) == tuple(MODEL.adapter_parameters * size for size in (4, 8, 8))
    assert memory.total == sum(memory.kinds.values())


def test_near_the_compilers_figure_without_remat() -> None:
    # Six layers more take 3176.8 - 1819.9 MB of temporaries in the shipped compiles of 6 and 12 (v5p 2x2x1, tp=4, 1 x 3,072, splash).
    one = Filling(1.0, 922.0, 922.0, ((0, 500.0), (1024, 400.0)), ((3072, 1.0),))
    point = paper_point(batch=1, filling=one, attention="splash", remat="none")
    memory = training_memory(point)
    assert memory.activations == pytest.approx(60 * (3176.8e6 - 1819.9e6) / 6, rel=0.08)
    assert memory.total == pytest.approx(32.1e9, rel=0.08)


def test_near_the_compilers_figure_with_remat() -> None:
    # The whole model's step, micro-batch 1 x 3,072, tp=4, remat by layer: 21.1 GB a chip.
    one = Filling(1.0, 922.0, 922.0, ((0, 500.0), (1024, 400.0)), ((3072, 1.0),))
    assert training_memory(paper_point(batch=1, filling=one)).total / 1e9 == pytest.approx(21.1, rel=0.15)
