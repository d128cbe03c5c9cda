from dataclasses import replace

from crossmesh.config.verdicts import MattersSpec
from crossmesh.report.charts.sweep import PricedVariant, front, heat_panels, points, scaling_lines
from crossmesh.report.variants import RunRecord


def run(results, name, rate, hardware="cpu", micro=1, **mesh):
    torch = results.variants[1]
    system = {"backend": "torch", "hardware": hardware, "batch_micro": micro, "mesh": {"dcn": 1, "data": 1, "fsdp": 1, "tp": 1, **mesh}}
    training = replace(torch.training, tokens_per_s=rate)
    return replace(torch, name=name, record=RunRecord(name, {}, system), training=training)


def of(results, *variants):
    return points(replace(results, variants=variants))


def test_a_cell_of_the_heat_map_is_the_best_of_its_mesh_and_micro_batch(results):
    found = of(results, run(results, "a", 10.0, fsdp=2), run(results, "b", 12.0, fsdp=2), run(results, "c", 9.0, micro=2, fsdp=2, tp=4))
    assert heat_panels(found) == {"torch on cpu": {("fsdp 2", 1): 12.0, ("fsdp 2 tp 4", 2): 9.0}}
    assert [one.devices for one in found] == [2, 2, 8]


def test_one_point_is_no_heat_map_and_one_size_no_scaling(results):
    assert heat_panels(of(results, run(results, "a", 10.0))) == {}
    assert scaling_lines(of(results, run(results, "a", 10.0, fsdp=2), run(results, "b", 12.0, tp=2))) == {}


def test_slices_of_one_chip_scale_together(results):
    small, large = run(results, "a", 10.0, "gpu_2xh100", fsdp=2), run(results, "b", 35.0, "gpu_8xh100", fsdp=8)
    assert scaling_lines(of(results, small, large)) == {"torch on h100": [(2, 10.0), (8, 35.0)]}


def test_a_base_and_an_old_record_are_no_points(results):
    assert points(results) == ()


def test_the_front_is_what_nobody_beats_in_both():
    def offer(name, hours, usd):
        return PricedVariant(name, "x", hours, usd, 1.0, None)

    offers = [
        offer("slow and cheap", 3.0, 1.0),
        offer("beaten", 3.0, 2.0),
        offer("fast", 1.0, 5.0),
        offer("between", 2.0, 2.0),
        offer("dear", 2.5, 2.0),
    ]
    assert [one.name for one in front(offers)] == ["fast", "between", "slow and cheap"]
    unpriced = [
        PricedVariant("a", "x", 1.0, None, 0.5, None),
        PricedVariant("b", "x", 2.0, None, 0.4, None),
        PricedVariant("c", "x", 3.0, None, 0.45, None),
    ]
    assert [one.name for one in front(unpriced)] == ["a", "b"]


def test_a_front_does_not_rest_on_a_difference_that_does_not_matter():
    """b is 3% slower than a for 5e-7 nats; c costs 30% more time and is better by 0.1 nats."""
    found = [
        PricedVariant("a", "x", 1.0, None, 0.5, None),
        PricedVariant("b", "x", 1.03, None, 0.5 - 5e-7, None),
        PricedVariant("c", "x", 1.3, None, 0.4, None),
    ]
    assert [one.name for one in front(found)] == ["a", "c"]
    assert [one.name for one in front(found, MattersSpec(loss=1e-7))] == ["a", "b", "c"]
    assert [one.name for one in front(found[:2], MattersSpec(speed=5.0))] == ["a"]  # Neither matters: the first stays.
