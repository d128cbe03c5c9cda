"""A plan's verdict, price, budget, nearest neighbour and front."""

import time
from dataclasses import replace
from datetime import date

import pytest

from crossmesh.config.planning import PlanSpec
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.plan.figures import Compiled, figures, micro_flops
from crossmesh.plan.record import training_record
from crossmesh.plan.training.forecast import Forecast, forecast, pareto, priced
from plan_points import paper_point

TODAY = date(2026, 6, 1)


def test_hours_price_and_rate_follow_from_the_step() -> None:
    planned = forecast(paper_point(), PlanSpec(), TODAY)
    step = planned.figures.step_s
    assert planned.hours == pytest.approx(1244 * step / 3600)
    assert planned.usd == pytest.approx(planned.hours * 16.80)
    assert planned.tokens_per_s == pytest.approx(8 * 922 / step)
    assert planned.usd_per_million_tokens == pytest.approx(16.80 / 3600 * 1e6 / planned.tokens_per_s)
    assert planned.warnings == ()
    # 30% of the sequences are real and each layer is made again; neither counts. LoRA needs 4 FLOP per frozen parameter and token.
    assert planned.mfu == pytest.approx(4 * 29.29e9 * planned.tokens_per_s / (4 * 459e12), rel=0.2)


def test_a_rejected_point_names_the_nearest_that_fits() -> None:
    planned = forecast(paper_point(slice=find_slice("tpu_v6e_8"), mesh=MeshShape(1, 1, 8)), PlanSpec(), TODAY)
    assert not planned.fits
    assert "k_einsum" in planned.reasons[0]
    assert planned.nearest.startswith("mesh.data=1 mesh.fsdp=")
    assert planned.usd is planned.hours is planned.tokens_per_s is None


def test_memory_that_does_not_suffice_says_what_takes_it() -> None:
    planned = forecast(paper_point(slice=find_slice("tpu_v6e_8"), mesh=MeshShape(1, 8, 1), remat="none"), PlanSpec(), TODAY)
    assert "of 32.0 GiB a program can have 31.0" in planned.reasons[0]
    assert "Most of it: activations" in planned.reasons[0]
    assert planned.nearest == "mesh.data=1 mesh.fsdp=2 mesh.tp=4"  # backend.remat=layer fits as well, and computes more.


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (PlanSpec(max_usd=5), "USD with rows of 922 tokens, more than plan.max_usd=5"),
        (PlanSpec(max_hours=0.5), "hours with rows of 922 tokens, more than plan.max_hours=0.5"),
        (PlanSpec(max_usd=5, price="committed_1y"), "there is no price for tpu_v5p_8"),
    ],
)
def test_budgets_reject(plan: PlanSpec, said: str) -> None:
    planned = forecast(paper_point(), plan, TODAY)
    assert not planned.fits
    assert said in planned.reasons[0]


def test_stale_and_missing_prices_are_said() -> None:
    assert "days old" in forecast(paper_point(), PlanSpec(), date(2027, 6, 1)).warnings[0]
    assert "no committed_1y price for tpu_v5p_8" in forecast(paper_point(), PlanSpec(price="committed_1y"), TODAY).warnings[0]


def test_a_price_of_nothing_that_is_sold_is_said_beside_its_age_and_what_is_sold_where_there_is_no_price() -> None:
    h100 = find_slice("gpu_2xh100")
    price, said = priced(h100, PlanSpec(), date(2027, 6, 1))
    assert price is not None
    assert "Nothing is sold at this on_demand price: Google Cloud sells a3-highgpu-2g as spot or flex_start" in said[0]
    assert "days old" in said[1]
    assert priced(h100, PlanSpec(price="spot"), TODAY)[1][0] == ""
    none, said = priced(h100, PlanSpec(price="flex_start"), TODAY)
    assert none is None
    assert "no flex_start price for gpu_2xh100: nothing is priced. Google Cloud sells a3-highgpu-2g as spot or flex_start. Give" in said[0]


def test_a_compilers_memory_counts_and_its_time_is_the_least() -> None:
    point = paper_point()
    own = figures(point)
    quick = Compiled(
        "libtpu", 21.1e9, {"arguments": 20e9}, own.phases["matmul"], None, 0.5 * own.step_s / point.micro_steps, extrapolated=True
    )
    joined = figures(point, quick)
    assert (joined.hbm_bytes, joined.hbm_source, joined.memory) == (21.1e9, "compiled", {"arguments": 20e9})
    assert (joined.step_s, joined.step_source) == (own.step_s, "modelled")
    assert joined.agreement.seconds == pytest.approx(2.0)
    assert joined.agreement.memory == pytest.approx(own.hbm_bytes / 21.1e9)
    slow = figures(point, replace(quick, seconds=2 * own.step_s / point.micro_steps))
    assert (slow.step_s, slow.step_source) == (pytest.approx(2 * own.step_s), "compiled")
    record = training_record("x", forecast(point, PlanSpec(), TODAY, quick))
    assert (record.hbm_source, record.step_source, record.compiled["by"]) == ("compiled", "modelled", "libtpu")


def test_time_follows_the_widths_and_memory_the_length() -> None:
    full = paper_point()
    half = replace(full, filling=replace(full.filling, widths=((1024, 0.5), (2048, 0.5))))
    long, short = figures(full), figures(half)
    assert short.hbm_bytes == long.hbm_bytes
    # Products by half; attention, which computes the whole square, to (1 + 4) / 2 / 9; what is once a step stays.
    assert short.phases["elementwise"] == pytest.approx(long.phases["elementwise"] / 2)
    assert short.phases["attention"] == pytest.approx(long.phases["attention"] * 2.5 / 9)
    assert short.phases["optimizer"] == long.phases["optimizer"]
    assert short.bound_s < 0.51 * long.bound_s
    assert half.at_full_length == full
    # A compiler that was asked about full length says so much less of shorter ones.
    said = Compiled("libtpu", 21.1e9, {}, None, None, 2 * long.step_s / full.micro_steps, extrapolated=False)
    assert figures(half, said).step_s == pytest.approx(2 * short.step_s)
    assert figures(half, said).agreement.seconds == pytest.approx(0.5)


def test_the_models_flop_of_a_micro_batch_agree_with_xlas() -> None:
    point = paper_point(loss_share=3072 / 922)  # Logits of every position: 1.64e14 by XLA (docs/plan.md).
    assert micro_flops(point) == pytest.approx(1.64e14, rel=0.1)


def test_the_front_is_what_no_other_beats_in_both() -> None:
    planned = forecast(paper_point(), PlanSpec(), TODAY)

    def point(step_s: float, price: float) -> Forecast:
        return replace(planned, figures=replace(planned.figures, step_s=step_s), price=replace(planned.price, usd_per_hour=price))

    fast, cheap, slow, dear = point(1, 50), point(2, 10), point(4, 10), point(1.5, 60)
    assert pareto([slow, dear, cheap, fast]) == (fast, cheap)
    assert pareto([replace(fast, reasons=("no",))]) == ()


def test_a_whole_plan_of_a_fitting_point_takes_under_a_millisecond() -> None:
    start = time.process_time()
    for _ in range(100):
        forecast(paper_point(), PlanSpec(), TODAY)
    assert (time.process_time() - start) / 100 < 1e-3
