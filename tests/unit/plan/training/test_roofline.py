"""Work and time of a step against counts by hand, a compiler's figures and known rings."""

import time

import pytest

from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.plan.training.efficiency import IDEAL, efficiency
from crossmesh.plan.training.lengths import causal_pairs, log_normal, row_lengths
from crossmesh.plan.training.links import all_gather_s, all_reduce_s, network_all_reduce_s, ring_bytes_per_s
from crossmesh.plan.training.roofline import attention_flops, loss_head_flops, lower_bound_s, matmul_flops, phases, seen_pairs
from plan_points import MODEL, paper_point

LAYERS = 50 * (2 * 5376 * 8192 + 2 * 5376 * 4096 + 3 * 5376 * 21504) + 10 * (2 * 5376 * 16384 + 5376 * 2048 + 3 * 5376 * 21504)


def test_products_by_hand() -> None:
    # Frozen: 2 P forward, again under remat, and for the input's gradient. LoRA: also for its own gradient. On 4 ranks A of q, k, v, gate
    # and up and B of o and down are computed by every rank.
    whole = 64 * (50 * (5376 * 5 + 5376 * 2) + 10 * (5376 * 4 + 5376 * 2))
    split = MODEL.adapter_parameters - whole
    expected = 2 * 3 * LAYERS / 4 + 2 * 4 * (split / 4 + whole)
    assert matmul_flops(paper_point(), 1) == pytest.approx(expected, rel=1e-9)


def test_the_compilers_flops_within_two_percent() -> None:
    # XLA for v5p 2x2x1, the whole step at micro-batch 1 x 3,072, tp=4, remat by layer: 1.64e14 a chip; its loss head was full width.
    point = paper_point()
    head = 3072 * 4 * 262_144 * 5376 / 4
    assert matmul_flops(point, 3072) + attention_flops(point, 3072) + head == pytest.approx(1.64e14, rel=0.02)


def test_pairs_by_kernel() -> None:
    sliding, whole = sorted(MODEL.layers, key=lambda work: work.layer.window, reverse=True)
    assert (seen_pairs(paper_point(), sliding), seen_pairs(paper_point(), whole)) == (3072, 3072)
    splash = paper_point(attention="splash")
    assert seen_pairs(splash, whole) == 3073 / 2
    assert seen_pairs(splash, sliding) == (1024 * 1025 / 2 + 2048 * 1024) / 3072
    # Skips other rows and padding: pairs within rows, for the real tokens of a sequence.
    assert seen_pairs(paper_point(attention="flash"), whole) == pytest.approx(500 * 922 / 3072)
    assert causal_pairs(4, 0) == 10
    assert causal_pairs(5, 2) == 1 + 2 + 2 + 2 + 2


def test_attention_by_hand() -> None:
    # 4 FLOP a pair and query feature, forward, again under remat, twice backward; split over 4 ranks.
    features = 50 * 8192 + 10 * 16384
    assert attention_flops(paper_point(), 1) == 4 * 3072 * features * 4 / 4
    fused = attention_flops(paper_point(attention="splash", remat="none"), 1)
    sliding = (1024 * 1025 / 2 + 2048 * 1024) / 3072
    assert fused == pytest.approx(4 * (50 * 8192 * sliding + 10 * 16384 * 3073 / 2) * 3.5 / 4)


def test_loss_head_counts_only_what_carries_loss() -> None:
    assert loss_head_flops(paper_point(loss_share=0.15)) == pytest.approx(8 * 922 * 0.15 * 4 * 262_144 * 5376 / 4)


def test_rings() -> None:
    v5p, h100, mi300x = (find_slice(name).chip for name in ("tpu_v5p_8", "gpu_2xh100", "gpu_8xmi300x"))
    assert [ring_bytes_per_s(v5p, chips) for chips in (2, 4)] == [100e9, 200e9]
    assert ring_bytes_per_s(h100, 8) == 450e9
    assert [ring_bytes_per_s(mi300x, chips) for chips in (2, 8)] == [64e9, 448e9]
    # An all-reduce sends 2 (n - 1) / n of the array: 33 MB over 4 chips of a v5p in 0.2477 ms.
    size = 3072 * 5376 * 2
    assert all_reduce_s(v5p, 4, size) == pytest.approx(2 * 0.75 * size / 200e9) == pytest.approx(2.477e-4, rel=1e-3)
    assert all_gather_s(v5p, 1, size) == 0
    assert network_all_reduce_s(v5p, 2, 6.25e9) == pytest.approx(1.0)
    assert network_all_reduce_s(h100, 2, 1.0) == float("inf")


def test_phases_add_up_and_tp_costs_what_its_all_reduces_cost() -> None:
    point, factors = paper_point(), efficiency(paper_point().slice.device)
    timed = phases(point, factors)
    assert timed.total == sum(timed.seconds.values())
    # 8 micro-steps; two all-reduces forward and two backward in each of 60 layers, one made again, one at the loss head.
    reduces = 60 * 5 + 1
    assert timed.tp_collectives == pytest.approx(8 * reduces * (2.477e-4 / 0.8 + 5e-6), rel=1e-3)
    assert timed.fsdp_collectives == timed.data_collectives == 0
    assert timed.limiter == "matmul"
    sharded = phases(paper_point(mesh=MeshShape(1, 4, 1), batch=8), factors)
    assert sharded.tp_collectives == 0


def test_no_forecast_beats_the_bound() -> None:
    for changes in ({}, {"remat": "none", "attention": "splash"}, {"mesh": MeshShape(2, 1, 2)}, {"mesh": MeshShape(1, 4, 1)}):
        point = paper_point(**changes)
        assert lower_bound_s(point) <= phases(point, IDEAL).total * (1 + 1e-9)
        assert phases(point, IDEAL).total < phases(point, efficiency(point.slice.device)).total


def test_a_point_takes_under_a_millisecond() -> None:
    point, factors = paper_point(), efficiency(paper_point().slice.device)
    start = time.process_time()
    for _ in range(200):
        phases(point, factors)
    assert (time.process_time() - start) / 200 < 1e-3


def test_lengths_have_the_mean_and_percentile_that_were_asked_for() -> None:
    mu, sigma = log_normal(922, 2553)
    assert (mu, sigma) == pytest.approx((6.7068, 0.4893), abs=2e-4)
    lengths = sorted(row_lengths(922, 2553, 3072))
    # Rows over the limit are dropped, 0.4% of them, which takes the mean down a little.
    assert sum(lengths) / len(lengths) == pytest.approx(913, abs=3)
    assert lengths[int(0.99 * len(lengths))] == pytest.approx(2450, rel=0.03)
    assert row_lengths(0, 0, 256) == (256,)
