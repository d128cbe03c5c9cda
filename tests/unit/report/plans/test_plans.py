"""What a plan shows and leaves: labels, table, CSV, page, pictures, and the recomputed paper."""

import csv
import io
import json
import pickle
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console

from crossmesh.config.planning import PlanSpec
from crossmesh.config.sweep import labels_of
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.chips import AgeWarning
from crossmesh.hardware.mesh import MeshShape
from crossmesh.pipeline.plans import plan_json, price_notes
from crossmesh.plan.figures import Compiled
from crossmesh.plan.record import PlanRecord, training_record
from crossmesh.plan.serving.forecast import serving_forecast
from crossmesh.plan.serving.record import serving_record
from crossmesh.plan.training.calibration import Calibration, work_of
from crossmesh.plan.training.forecast import forecast
from crossmesh.report.plans.compiled import compiled_cells
from crossmesh.report.plans.files import write_plan
from crossmesh.report.plans.table import plan_cells, plan_columns, plan_csv, print_plan
from plan_points import paper_engine, paper_point

TODAY = date(2026, 6, 1)
KEYS = {"fits", "hbm_bytes_per_chip", "hbm_source", "step_seconds", "tokens_per_s", "usd", "hours", "limiter", "rejected_because"}


@pytest.fixture(scope="module")
def records() -> list[PlanRecord]:
    fitting = forecast(paper_point(remat="none", attention="splash"), PlanSpec(), TODAY)
    slower = forecast(paper_point(), PlanSpec(), TODAY)
    rejected = forecast(paper_point(slice=find_slice("tpu_v6e_8"), mesh=MeshShape(1, 1, 8)), PlanSpec(), TODAY)
    return [training_record("<fast>", fitting), training_record("slow", slower), training_record("tp=8", rejected)]


def test_labels_are_what_differs() -> None:
    assert labels_of([("a=1", "b=1", "c=1"), ("a=1", "b=2", "c=1")]) == [("b=1",), ("b=2",)]
    assert labels_of([("a=1",)]) == [()]
    assert labels_of([]) == []


def test_json_has_the_keys_that_scripts_read(records: list[PlanRecord]) -> None:
    one = plan_json("x", records[:1], [], "command")
    assert set(one) >= KEYS
    assert (one["fits"], one["hbm_source"], one["rejected_because"]) == (True, "modelled", None)
    many = plan_json("x", records, [], "command")
    assert [point["fits"] for point in many["points"]] == [True, True, False]
    assert many["usd"] == sum(record.usd for record in records if record.fits)
    json.dumps(many)


def test_the_table_says_why_and_what_would_fit(records: list[PlanRecord]) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    print_plan("plan", records, ["a note"], console)
    shown = console.export_text()
    assert "tp=8: layers.5.attn.k_einsum.w axis 0 has size 4" in shown
    assert "nearest that fits: mesh." in shown
    assert "a note" in shown
    console = Console(width=100, record=True, file=io.StringIO())
    print_plan("plan", [serving_record("engine", serving_forecast(paper_engine(), PlanSpec(), TODAY))], [], console)
    assert "concurrent sequences" in console.export_text()


def test_csv_has_a_line_a_point(records: list[PlanRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(plan_csv(records))))
    assert [row["label"] for row in rows] == ["<fast>", "slow", "tp=8"]
    assert float(rows[0]["usd"]) == pytest.approx(records[0].usd)
    assert rows[2]["step_seconds"] == ""


def test_files_hold_the_plan_and_escape_it(records: list[PlanRecord], tmp_path: Path) -> None:
    page = write_plan("plan", records, ["a note"], {"x": 1}, tmp_path).read_text()
    assert "&lt;fast&gt;" in page
    assert "<fast>" not in page
    assert "k_einsum" in page
    assert page.count("<svg ") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "plan.csv", "plan.html", "pareto.png", "memory.png"}
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")


def test_each_figure_names_its_source_and_the_model_stands_beside_the_compiler(records: list[PlanRecord]) -> None:
    answer = Compiled("libtpu 1, jax 2", 20 * 2**30, {"arguments": 20.0 * 2**30}, 2e14, 1e12, 0.5, extrapolated=True)
    calibration = Calibration(work_of(paper_point()), 1.25, 1.0, 1.5, ("a", "b", "c"), 30_000_000_000, 31_000_000_000)
    planned = forecast(paper_point(), PlanSpec(), TODAY, answer, calibration)
    one = training_record("tp=4", planned)
    cells = dict(zip(plan_columns(), plan_cells(one), strict=True))
    assert (cells["HBM GiB"], cells["source of HBM / step"]) == ("20.0 / 92.1", "compiled / modelled x 1.25 (3 runs)")
    assert plan_cells(records[1])[-1] == "modelled"
    memory, ratio, flops, *_, by = compiled_cells(one)
    assert (memory, flops, by) == ("20.0", "2e+14", "libtpu 1, jax 2, extrapolated from small depths")
    assert float(ratio) == pytest.approx(records[1].hbm_bytes_per_chip / (20 * 2**30), abs=0.005)
    row = next(csv.DictReader(io.StringIO(plan_csv([one]))))
    assert (row["calibration_factor"], row["compiled_seconds"], row["hbm_source"]) == ("1.25", "0.5", "compiled")
    shown = printed([one, records[1]], 200)
    assert "libtpu 1, jax 2" in shown
    assert "compiled: FLOP of a micro-batch" in printed([one], 120)


def test_a_narrow_terminal_gets_fewer_columns_and_is_told_where_they_are(records: list[PlanRecord]) -> None:
    swept = [replace(one, swept={"hardware": "tpu_v5p_8", "mesh.fsdp": "-1", "mesh.tp": str(index)}) for index, one in enumerate(records)]
    wide, narrow = printed(swept, 160), printed(swept, 80)
    assert "MFU" in wide
    assert "Left out" not in wide
    assert "Left out for want of width, and in plan.csv: MFU, limiter" in narrow
    assert "USD" in narrow.partition("Left out")[0]
    assert f"{records[0].usd:.2f}" in narrow
    assert max(map(len, narrow.splitlines())) <= 80
    assert "tpu_v5p_8" in narrow
    assert "modelled" in narrow


def test_what_all_points_share_is_a_line_and_no_column(records: list[PlanRecord]) -> None:
    fitting = [replace(one, swept={"mesh.tp": str(index)}, label=str(index)) for index, one in enumerate(records[:2])]
    shown = printed(fitting, 200)
    assert "source of HBM / step: modelled" in shown.splitlines()[0]
    assert "source" not in shown.partition("\n")[2]
    assert "fits" in shown.partition("\n")[2]
    assert "All points" not in printed(fitting[:1], 200)


def test_prices_of_many_points_are_few_lines(records: list[PlanRecord]) -> None:
    old = AgeWarning("3 USD/h (x) is of unknown age, in any words.")
    price = {"usd_per_hour": 3.0, "kind": "spot", "region": "r", "source": "x", "read": None}
    many = [
        replace(records[0], hardware=f"h{n}", warnings=(old, "other"), price=price | {"usd_per_hour": float(n), "region": f"r{n % 5}"})
        for n in range(20)
    ]
    notes = price_notes(many)
    assert notes[0] == "USD/h spot in r0, from x, no date: h0 0.00, h5 5.00, h10 10.00, h15 15.00."
    assert notes[3:] == [
        "2 more sources of prices: price in plan.json.",
        "Prices of 20 points are old or of unknown age: look them up, or give your own in hardware.catalogue.",
    ]
    assert price_notes(many[:1]) == ["USD/h spot in r0, from x, no date: h0 0.00."]
    others = [replace(one, warnings=("The price of electricity is not a price of a slice.",)) for one in many]
    assert price_notes(others)[3:] == notes[3:4]
    assert json.dumps(plan_json("p", many[:1], [], "c")["warnings"]) == json.dumps([str(old), "other"])


def test_the_age_of_a_price_is_told_by_its_type() -> None:
    price = find_slice("gpu_2xh100").prices[0]
    said = price.warning(date(2040, 1, 1), 30)
    assert isinstance(said, AgeWarning)
    assert str(said).startswith("The price of ")
    assert pickle.loads(pickle.dumps(said)) == said
    assert not price.warning(price.read or date(2026, 1, 1), 30)


def printed(records: list[PlanRecord], width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_plan("plan", records, [], console)
    return console.export_text()
