"""The catalogue: figures as published, prices that say where they come from, and a user's own file."""

from datetime import date
from pathlib import Path

import pytest

from crossmesh.config.training import HardwareSpec
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice, slices
from crossmesh.hardware.chips import Price, unit_prices

CHIPS = {"v4", "v5e", "v5p", "v6e", "v7x", "a100_40", "a100_80", "h100", "h200", "b200", "l4", "mi300x"}


def test_every_promised_chip_is_there_once_with_its_sources() -> None:
    found = {one.chip.name: one.chip for one in slices().values() if one.chip}
    assert set(found) == CHIPS
    for chip in found.values():
        assert chip.sources
        # Nothing published lies outside; a figure in wrong units does.
        assert 1e14 < chip.bfloat16 < 3e15
        assert 10 * 2**30 < chip.hbm_bytes < 200 * 2**30
        assert 2e11 < chip.hbm_bytes_per_s < 1e13
        assert 1e10 < chip.link.bytes_per_s < 1e12


@pytest.mark.parametrize(
    ("name", "chips", "hosts"),
    [("tpu_v4_8", 4, 1), ("tpu_v5p_8", 4, 1), ("tpu_v5p_16", 8, 2), ("tpu_v7x_8", 4, 1), ("tpu_v5e_8", 8, 1), ("tpu_v6e_8", 8, 1)],
)
def test_names_count_cores_on_v4_v5p_and_v7x_and_chips_on_v5e_and_v6e(name: str, chips: int, hosts: int) -> None:
    device = find_slice(name).device
    assert (device.chip_count(), device.hosts) == (chips, hosts)


def test_figures_of_the_papers_hardware() -> None:
    v5p, v6e, h100 = (find_slice(name).chip for name in ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100"))
    assert (v5p.bfloat16, v5p.hbm_bytes, v5p.hbm_bytes_per_s) == (459e12, 95 * 2**30, 2765e9)
    # 1,200 GB/s both ways over 6 links and 800 over 4: docs.cloud.google.com/tpu/docs/tpu7x.
    assert (2 * v5p.link.links * v5p.link.bytes_per_s, 2 * v6e.link.links * v6e.link.bytes_per_s) == (1200e9, 800e9)
    assert [h100.peak(dtype) for dtype in ("bfloat16", "fp8", "float32")] == pytest.approx([989.4e12, 1978.9e12, 66.9e12])
    assert v5p.peak("float32") is None


def test_prices_of_the_paper_come_first_and_a_region_or_kind_can_be_asked_for() -> None:
    prices = {name: find_slice(name).price("on_demand").usd_per_hour for name in ("tpu_v5p_8", "tpu_v6e_8", "gpu_2xh100")}
    assert prices == {"tpu_v5p_8": 16.80, "tpu_v6e_8": 21.52, "gpu_2xh100": 22.12}
    assert find_slice("tpu_v5p_8").price("on_demand", "europe-west4").usd_per_hour == 17.01
    assert find_slice("tpu_v5p_8").price("spot").usd_per_hour == 6.72
    assert find_slice("tpu_v5p_8").price("committed_3y") is None
    assert all(price.source for one in slices().values() for price in one.prices)


def test_every_slice_with_a_price_says_how_each_of_its_sellers_sells_it() -> None:
    for one in slices().values():
        assert bool(one.offers) or not one.prices
        assert all(offer.source and offer.ways for offer in one.offers)
    assert {name for name, one in slices().items() if not one.offers} == {"cpu", "gpu_8xmi300x"}
    unsold = {(name, price.kind, price.region) for name, one in slices().items() for price in one.prices if price.unsold}
    assert unsold == {(name, "on_demand", region) for name in ("gpu_1xh100", "gpu_2xh100") for region in ("", "us-east4")}


def test_a_price_of_nothing_that_is_sold_says_so_and_what_is_sold() -> None:
    two, one = find_slice("gpu_2xh100"), find_slice("gpu_1xh100")
    assert two.price("on_demand").unsold.startswith(
        "Nothing is sold at this on_demand price: Google Cloud sells a3-highgpu-2g as spot or flex_start (docs.cloud.google.com/"
    )
    assert two.price("spot").unsold == ""
    assert "a3-highgpu-1g as spot or flex_start; Nebius sells one H100 as on_demand or spot (" in one.price("on_demand").unsold
    assert one.price("on_demand", "nebius-eu-north1").unsold == ""


def test_of_a_users_own_prices_only_what_the_user_says_is_known(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    slice_ = "{kind: gpu, chip: h100, count: 2, accelerator_type: H100, prices: [{usd_per_hour: 9, kind: on_demand, source: contract}]"
    own.write_text(f"slices:\n  gpu_2xh100: {slice_}}}\n")
    assert find_slice("gpu_2xh100", str(own)).price("on_demand").unsold == ""
    own = tmp_path / "sold.yaml"
    own.write_text(
        f"slices:\n  gpu_2xh100: {slice_}, sold: [{{seller: us, product: rack, ways: [spot], source: contract, date: 2026-11-01}}]}}\n"
    )
    assert "us sells rack as spot (contract, 2026-11-01)" in find_slice("gpu_2xh100", str(own)).price("on_demand").unsold


def test_a_price_per_unit_by_hand() -> None:
    one = find_slice("tpu_v5p_8")
    unit = unit_prices(one.chip, 4, one.price("on_demand"))
    assert unit.usd_per_tflop_hour == pytest.approx(16.80 / (4 * 459))
    assert unit.usd_per_tbps_hour == pytest.approx(16.80 / (4 * 2.765))
    assert unit.usd_per_gib_hour == pytest.approx(16.80 / (4 * 95))


def test_a_price_says_when_it_is_stale_or_undated() -> None:
    price = Price(16.8, "on_demand", "", "a list", date(2026, 5, 1))
    assert price.warning(date(2026, 10, 28), 180) == ""
    assert "181 days old, more than plan.price_max_age_days=180" in price.warning(date(2026, 10, 29), 180)
    assert "of unknown age" in Price(16.8, "spot", "", "a list", None).warning(date(2026, 5, 1), 180)


def test_a_users_file_adds_slices_and_replaces_chips(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "chips:\n  mine: {tflops: {bfloat16: 500}, hbm: {gib: 64, gbps: 2000}, link: {gbps: 100, links: 4, topology: torus2d}, "
        "sources: [data sheet]}\n"
        "slices:\n  my_rack: {kind: gpu, chip: mine, count: 16, accelerator_type: MINE, "
        "prices: [{usd_per_hour: 8, kind: committed_3y, source: contract, date: 2026-11-01}]}\n"
    )
    hardware = HardwareSpec("my_rack", catalogue=str(own))
    assert hardware.slice.chip.peak("bfloat16") == 500e12
    assert hardware.slice.price("committed_3y").read == date(2026, 11, 1)
    own.unlink()
    assert hardware.slice.device.chip_count() == 16  # workers on other machines do not have the file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prices: {}", "there is no section 'prices'. Allowed: chips, slices, sources"),
        ("slices: {a: {kind: gpu, chip: h1000, count: 1, accelerator_type: X}}", "Did you mean 'h100'?"),
        ("slices: {a: {kind: npu}}", "Allowed: cpu, gpu, tpu"),
        (
            "slices: {a: {kind: cpu, prices: [{usd_per_hour: 1, kind: monthly, source: x}]}}",
            "Allowed: committed_1y, committed_3y, flex_start, on_demand, spot",
        ),
        ("chips: {a: {tflops: {}}}", "Needed: a catalogue"),
        (
            "slices: {a: {kind: cpu, sold: [{seller: me, product: it, ways: [flexstart], source: x}]}}",
            "slice a: way of selling='flexstart'",
        ),
    ],
)
def test_a_users_mistake_is_one_message(tmp_path: Path, text: str, said: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    with pytest.raises(InputError) as error:
        slices(str(own))
    assert said in str(error.value)
    with pytest.raises(InputError, match="is not a file"):
        slices(str(tmp_path / "other.yaml"))


def test_the_file_of_prices_that_the_docs_show_prices_a_cpu(tmp_path):
    docs = Path(__file__).parents[3] / "docs" / "plan.md"
    shown = docs.read_text().partition("### Your own prices")[2].partition("```yaml\n")[2].partition("```")[0]
    file = tmp_path / "own.yaml"
    file.write_text(shown)
    price = find_slice("cpu", str(file)).price("on_demand")
    assert (price.usd_per_hour, price.source, price.read) == (0.25, "our own bill", date(2026, 5, 1))
