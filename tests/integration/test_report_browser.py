"""The report and MLflow's compare view in a real browser: Debian's Chromium, driven by Playwright. Screenshots go to outputs/browser."""

import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.console import Console
from crossmesh.report.comparing import compare_runs
from crossmesh.report.gate.selection import named_runs, sweep_runs
from crossmesh.track.tracked_run import TAG_ADAPTER, TAG_BASE, TAG_SCIENCE
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.verify.compare_speed.sweep_store import make_sweep
from report_runs import add_evaluation, problems

pytestmark = [pytest.mark.integration, pytest.mark.full]
SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
RUNS = 24


@pytest.fixture(scope="module")
def shots(checkout: Path) -> Path:
    folder = checkout / "outputs" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tracker, str]:
    """A sweep over three learning rates, two kinds of hardware, meshes and micro-batches: tracker and id."""
    root = tmp_path_factory.mktemp("browser")
    with Console().stage("runs") as stage:
        parent = make_sweep(ExperimentSpec(), root / "storage", RUNS, 10, stage, rates=(1e-4, 2e-4, 3e-4))
    return open_tracker(TrackingSpec(), StorageSpec(str(root / "storage"))), parent


@pytest.fixture(scope="module")
def page_file(store: tuple[Tracker, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    tracker, parent = store
    return compare_runs(
        tracker, sweep_runs(tracker, parent), "compare", tmp_path_factory.mktemp("reports"), (1.0, 8.0), 0.0, ExperimentSpec()
    ).page


@pytest.fixture(scope="module")
def judged_file(store: tuple[Tracker, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of two runs that learnt the same, whose adapters and base were evaluated: the base solves nothing, they 1/3 and 2/3."""
    tracker, parent = store
    first, *others = sweep_runs(tracker, parent).runs
    second = next(run for run in others if run.tags[TAG_SCIENCE] == first.tags[TAG_SCIENCE])
    base = {TAG_BASE: "b" * 64}
    add_evaluation(tracker, "base", base, 0)
    for right, run in enumerate((first, second), 1):
        tracker.tags(run.run_id, base)
        add_evaluation(tracker, run.name, {**base, TAG_ADAPTER: run.tags[TAG_ADAPTER]}, right)
    chosen = named_runs(tracker, [first.run_id, second.run_id])
    return compare_runs(tracker, chosen, "compare", tmp_path_factory.mktemp("judged"), (1.0, 8.0), 0.0, ExperimentSpec()).page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("There is no Chromium here. Run: make browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, page_file: Path, judged_file: Path) -> Iterator[Any]:
    """Returns a function that opens a report at a size and in a color scheme; afterwards nothing may have been said or asked for."""
    contexts, said, asked = [], [], []

    def open_page(width: int, height: int, scheme: str = "light", *, judged: bool = False) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((judged_file if judged else page_file).as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) <= {page_file.as_uri(), judged_file.as_uri()}


def column(page: Any, table: str, heading: str) -> list[float]:
    """The values of a column in the order of the rows that are shown."""
    script = """([table, heading]) => {
        const heads = [...document.querySelectorAll(`#table-${table} thead th`)];
        const place = heads.findIndex(head => head.textContent.startsWith(heading));
        return [...document.querySelectorAll(`#table-${table} tbody tr`)].filter(row => !row.hidden)
            .map(row => Number(row.cells[place].dataset.value));
    }"""
    return page.evaluate(script, [table, heading])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_page_fits_its_screen_and_says_nothing_on_the_console(opened: Any, shots: Path, size: str, scheme: str) -> None:
    page = opened(*SIZES[size], scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert page.get_by_role("heading", level=2, name="Comparable groups").is_visible()
    broken = (
        "[...document.querySelectorAll('svg')].filter(one => one.getBoundingClientRect().width > 0).every(one => one.getBBox().width > 100)"
    )
    assert page.evaluate(broken)
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor")
        == {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 17, 22)"}[scheme]
    )
    page.screenshot(path=shots / f"report-{size}-{scheme}.png", full_page=True)


@pytest.mark.parametrize("size", SIZES)
def test_answers_stand_beside_the_bases_and_what_solves_more_is_at_the_top(opened: Any, shots: Path, size: str) -> None:
    page = opened(*SIZES[size], judged=True)
    page.screenshot(path=shots / f"report-judged-{size}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    cards = page.locator(".example")
    assert cards.count() == 8  # Two that passed and two that failed of each model.
    states = [card.locator(".state").all_inner_texts() for card in cards.all()]
    assert states == [["passed", "failed"]] * 2 + [["failed", "failed"]] * 2 + [["passed", "failed"]] * 2 + [["failed", "failed"]] * 2
    names = [card.locator("b").all_inner_texts() for card in cards.all()]
    assert all(pair[1] == "base" and " fsdp" in pair[0] for pair in names)
    kinds = {problem.id.rpartition("-")[0] for problem in problems()}
    heads = page.locator("#table-kinds tbody th .main").all_inner_texts()
    assert set(heads) == kinds
    assert page.locator("#table-evaluation").is_visible()
    whole = page.locator("main").inner_text()
    assert whole.index("Sample answers") < whole.index("Records")
    empty = """[...document.querySelectorAll('table')].filter(table => {
        const cells = [...table.querySelectorAll('tbody td.number')];
        return cells.length && cells.every(cell => cell.dataset.value === undefined);
    }).map(table => table.id)"""
    assert page.evaluate(empty) == []  # No table has no number at all.
    cut = """[...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1
        && !one.closest('.scroll, pre, .tall')).map(one => one.outerHTML.slice(0, 120))"""
    assert page.evaluate(cut) == []


def test_tables_sort_by_click_numbers_as_numbers(opened: Any) -> None:
    page = opened(*SIZES["desktop"])
    head = page.locator("#table-training").get_by_role("button", name="Training speed")
    before = column(page, "training", "Training speed")
    head.click()
    assert column(page, "training", "Training speed") == sorted(before)
    assert page.get_by_role("columnheader", name="Training speed").get_attribute("aria-sort") == "ascending"
    head.click()
    assert column(page, "training", "Training speed") == sorted(before, reverse=True)
    page.locator("#table-training").get_by_role("button", name="micro-batch").click()
    assert column(page, "training", "micro-batch") == sorted(column(page, "training", "micro-batch"))
    assert page.get_by_role("columnheader", name="Training speed").get_attribute("aria-sort") == "none"


def test_the_keyboard_reaches_sorts_and_filters(opened: Any, shots: Path) -> None:
    page = opened(*SIZES["desktop"])
    field = page.get_by_role("searchbox").nth(1)  # Of the training table, which comes after that of winners.
    field.focus()
    page.keyboard.type("torch micro4")
    rows = page.locator("#table-training tbody tr:visible")
    shown = rows.count()
    assert 0 < shown < RUNS
    assert all("torch" in text and "micro4" in text for text in rows.locator("th").all_inner_texts())
    assert page.locator("section:has(#table-training) output").inner_text() == f"{shown} of {RUNS} rows"
    for _ in range(2):  # Past the scrolling region to the first heading.
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent").startswith("Run")
    page.screenshot(path=shots / "report-filtered.png")
    page.keyboard.press("Enter")
    assert page.locator("#table-training th[aria-sort=ascending]").inner_text().startswith("Run")
    field.focus()
    page.keyboard.press("Escape")
    assert rows.count() == RUNS


def test_it_prints_whole_and_without_controls(opened: Any, tmp_path: Path, shots: Path) -> None:
    page = opened(*SIZES["desktop"], "dark")
    page.emulate_media(media="print")
    assert page.get_by_role("searchbox").first.is_hidden()
    assert page.evaluate("getComputedStyle(document.querySelector('.tall')).maxHeight") == "none"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 27, 34)"  # Dark ink, whatever the screen has.
    page.pdf(path=shots / "report.pdf", format="A4")
    assert (shots / "report.pdf").stat().st_size > 20_000


def test_mlflows_compare_view_shows_the_runs_of_the_sweep_side_by_side(chromium: Any, store: tuple[Tracker, str], shots: Path) -> None:
    tracker, parent = store
    runs = sweep_runs(tracker, parent).runs[:6]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen([*tracker.ui_arguments(port), "--workers", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        address = f"http://127.0.0.1:{port}"
        _wait(f"{address}/health")
        page = chromium.new_page(viewport={"width": 1500, "height": 1000})
        quoted = ",".join(f'"{run.run_id}"' for run in runs)
        page.goto(f'{address}/#/compare-runs?runs=[{quoted}]&experiments=["{tracker.experiment()}"]')
        page.get_by_text(re.compile(f"Comparing {len(runs)} Runs")).first.wait_for(timeout=60_000)
        page.get_by_text(runs[0].run_id).first.wait_for(timeout=60_000)
        text = page.locator("body").inner_text()
        page.screenshot(path=shots / "mlflow-compare.png")
        assert all(run.run_id in text for run in runs)
        page.close()
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait(url: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise TimeoutError(url)
