"""A report of thousands of runs: all are in its JSON, and what a page, a text and a chart show of them says what it leaves out."""

import json
import math
from dataclasses import replace

import pytest

from crossmesh.report.charts.runs import series_numbers
from crossmesh.report.charts.sweep import DOTS, PricedVariant, drawn
from crossmesh.report.gate.lineage import link
from crossmesh.report.pages.html import render_html
from crossmesh.report.pages.markdown import render_markdown
from crossmesh.report.pages.write import JSON_NAME, make_report
from crossmesh.report.stored import MOST_CURVES, curves_of
from crossmesh.report.tables.sheets import MOST_ROWS, tables
from crossmesh.report.variants import Results
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_KIND, TrackedRun

RUNS, SCIENCES = 1200, 240


@pytest.fixture(scope="module")
def many(results):
    """Runs that learnt 240 different things; the faster the higher their number, and every third without its curve."""
    torch = results.variants[1]
    one = torch.record.science
    sciences = [{**one, "optimizer": {**one["optimizer"], "learning_rate": 1e-4 + 1e-6 * n}} for n in range(SCIENCES)]
    variants = []
    for n in range(RUNS):
        training = replace(torch.training, tokens_per_s=100.0 + n, losses=() if n % 3 == 0 else torch.training.losses)
        record = replace(torch.record, name=f"run {n}", science=sciences[n % SCIENCES], evaluation=None)
        variants.append(replace(torch, name=f"run {n}", record=record, training=training, scores=(), run_id=f"{n:032x}"))
    return Results("many", tuple(variants), "compare")


@pytest.fixture(scope="module")
def report(many):
    return make_report(many)


def test_the_json_has_every_run_group_and_winner(report, tmp_path):
    report.write(tmp_path)
    said = json.loads((tmp_path / JSON_NAME).read_text())
    assert len(said["variants"]) == RUNS
    assert said["variants"]["run 7"]["tokens_per_s"] == 107.0
    assert len(said["groups"]) == SCIENCES
    assert len([one for one in said["winners"] if one["quantity"] == "tokens_per_s"]) == SCIENCES
    assert len(next(one for one in said["quantities"] if one["key"] == "tokens_per_s")["cells"]) == RUNS
    assert said == json.loads(json.dumps(report.json()))
    again = tmp_path / "again"
    make_report(report.results).write(again)
    assert (again / JSON_NAME).read_bytes() == (tmp_path / JSON_NAME).read_bytes()


def test_tables_keep_the_best_and_say_so(report):
    made = {one.key: one for one in tables(report.results, report.comparison, report.found)}
    assert len(made["training"].rows) == MOST_ROWS
    assert "Of 1,200 rows these 200 come first by wall clock; report.json has all." in made["training"].caption
    quick = replace(report.results, variants=report.results.variants[:MOST_ROWS])
    few = make_report(quick)
    whole = {one.key: one for one in tables(quick, few.comparison, few.found)}["training"]
    assert len(whole.rows) == MOST_ROWS
    assert "report.json" not in whole.caption
    winners = made["winners"]
    assert 0 < len(winners.rows) <= MOST_ROWS
    assert len({row[0].text for row in winners.rows}) == len({one.quantity.key for one in report.found.winners})
    assert "report.json has all" in winners.caption


def test_the_fastest_stay(many):
    faster = tuple(replace(one, training=replace(one.training, seconds=1e5 / one.training.tokens_per_s)) for one in many.variants)
    made = make_report(replace(many, variants=faster))
    (table,) = (one for one in tables(made.results, made.comparison, made.found) if one.key == "training")
    assert [row[0].text for row in table.rows] == [f"run {n}" for n in range(RUNS - MOST_ROWS, RUNS)]


def test_page_and_text_say_what_they_leave_out(report):
    page, text = (render(report.results, report.comparison, report.found) for render in (render_html, render_markdown))
    assert "40 more groups are in report.json." in page
    assert "the first 200; 1000 more are in report.json" in page
    assert "Drawn are 800 of 1,200 runs, evenly by their last loss." in page
    assert page.count('<tr><th scope="row"') < 5 * MOST_ROWS
    assert "and 220 more values" in text


def test_of_a_change_from_start_to_end_all_starts_are_known_or_none_is_said(report, results):
    assert make_report(results).json()["answer"]
    assert "\u2192" not in report.json()["answer"]


def test_curves_are_read_of_the_best_the_worst_and_those_between():
    def run(number, loss):
        return TrackedRun(str(number), "torch", "FINISHED", metrics={} if loss is None else {"train/final_loss": loss})

    few = [run(number, 1.0) for number in range(MOST_CURVES)]
    assert curves_of(few) == [one.run_id for one in few]
    chosen = curves_of([run(number, float(number)) for number in range(10_000)])
    assert len(set(chosen)) == MOST_CURVES
    assert (chosen[0], chosen[-1], chosen[100]) == ("0", "9999", "5025")
    assert curves_of([run(0, math.nan), run(1, None), *(run(number, -float(number)) for number in range(2, 400))])[0] == "399"


def test_dots_are_spread_over_the_whole_time():
    found = [PricedVariant(f"{number}", "torch on cpu", float(number), None, 1.0, None) for number in range(5000)]
    dots = drawn(found)
    assert (len(dots), dots[0].hours, dots[-1].hours) == (DOTS, 0.0, 4999.0)
    assert drawn(found[:DOTS]) == found[:DOTS]


def test_colors_go_round(many):
    numbers = series_numbers(many)
    assert [numbers[f"run {n}"] for n in range(8)] == [1, 2, 3, 4, 5, 6, 1, 2]


def test_each_of_thousands_of_trainings_finds_its_own_evaluation():
    def run(name, kind, number):
        return TrackedRun(f"{kind}{number}", name, "FINISHED", {TAG_KIND: kind, TAG_ADAPTER: f"digest {number}"})

    asked = []
    trainings = [run("torch", "train", number) for number in range(3000)]
    evaluations = [run("evaluate x", "evaluate", number) for number in reversed(range(3000))]
    found = link(trainings, [], evaluations, lambda one: asked.append(one) or "greedy")
    assert all([one.run_id for one in found.of(training)] == [f"evaluate{training.run_id[5:]}"] for training in trainings)
    assert len(asked) <= 4 * len(trainings)
