"""What is shown of loads: percentiles in table, CSV and page, and one line an engine over its rates."""

import csv
import io
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from rich.console import Console

from crossmesh.config.planning import PlanSpec
from crossmesh.plan.record import PlanRecord
from crossmesh.plan.serving.arrivals import planned_load
from crossmesh.plan.serving.forecast import serving_forecast
from crossmesh.plan.serving.record import serving_record
from crossmesh.report.plans.files import write_plan
from crossmesh.report.plans.loads import load_cells, rated
from crossmesh.report.plans.table import plan_csv, print_plan
from crossmesh.report.units import number_text, time_text
from plan_points import paper_engine


@pytest.fixture(scope="module")
def records() -> list[PlanRecord]:
    point = paper_engine(prompt=512, output=64)
    found = []
    for qps in (4.0, 1.0):
        plan = PlanSpec(workload="serve", qps=qps, duration=20.0, prompt_tokens=512, output_tokens=64)
        planned = serving_forecast(point, plan, date(2026, 6, 1), planned_load(plan, point.max_model_len))
        swept = {"hardware": "<v6e>", "serve.tp": "8", "plan.qps": f"{qps:g}"}
        found.append(replace(serving_record(f"plan.qps={qps:g}", planned), swept=swept))
    return [*found, serving_record("idle", serving_forecast(point, PlanSpec(workload="serve"), date(2026, 6, 1)))]


def test_a_sweep_over_rates_has_a_line_a_load(records: list[PlanRecord]) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    print_plan("plan", records, [], console)
    shown = console.export_text()
    assert "Requests, simulated" in shown
    loads = shown.partition("Requests, simulated")[2]
    assert loads.count("<v6e> tp=8") == 2
    assert "idle" not in loads
    serving = records[0].serving
    spread = f"{number_text(1000 * serving['tpot_seconds_p50'])} / {number_text(1000 * serving['tpot_seconds_p99'])}"
    assert spread in shown
    assert (load_cells(records[0])[0], load_cells(records[0])[2]) == ("4", spread)


def test_one_load_is_shown_with_its_engine(records: list[PlanRecord]) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    print_plan("plan", records[:1], [], console)
    shown = console.export_text()
    assert "ttft seconds p99" in shown
    assert "sustained qps" in shown


def test_engines_are_joined_over_their_rates(records: list[PlanRecord]) -> None:
    assert {name: [one.serving["load_qps"] for one in found] for name, found in rated(records).items()} == {"<v6e> tp=8": [1.0, 4.0]}
    assert rated(records[1:]) == {}


def test_csv_has_the_percentiles(records: list[PlanRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(plan_csv(records))))
    assert float(rows[0]["serving_ttft_seconds_p99"]) == records[0].serving["ttft_seconds_p99"]
    assert rows[2]["serving_ttft_seconds_p99"] == ""


def test_the_page_holds_the_loads(records: list[PlanRecord], tmp_path: Path) -> None:
    page = write_plan("plan", records, [], {}, tmp_path).read_text()
    assert "<h2>Requests, simulated: median / 99th percentile</h2>" in page
    assert "&lt;v6e&gt; tp=8" in page
    assert "<v6e>" not in page
    assert "mathdefault" not in page
    assert (tmp_path / "loads.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_are_short() -> None:
    assert [number_text(value) for value in (0.12345, 4.0, 99.96, 20480.4)] == ["0.123", "4", "100", "20,480"]
    assert [time_text(value) for value in (None, 0.0123456, 12.3456)] == ["", "12.3 ms", "12.3 s"]
