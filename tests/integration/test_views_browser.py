"""The prepared views of MLflow's UI, as a person who follows their addresses sees them: Debian's Chromium, driven by Playwright."""

import re
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.mlflow.tracker import MlflowTracker
from crossmesh.track.mlflow.views import VIEWS

pytestmark = [pytest.mark.integration, pytest.mark.full]


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> MlflowTracker:
    """Two trainings and two evaluations below a parent, as a pipeline leaves them."""
    tracker = MlflowTracker(TrackingSpec(system_metrics=False), StorageSpec(str(tmp_path_factory.mktemp("views") / "storage")))
    parent = tracker.start("pipeline", "pipeline")
    for number, name in enumerate(("torch", "jax")):
        run = tracker.start(name, "train", parent=parent, params={"mesh_shape": {"fsdp": 1}, "micro_batch": 2})
        for step in (1, 2, 3):
            tracker.metrics(run, {"train/loss": 3.0 - step + number, "train/tokens": 100.0 * step, "train/tokens_per_s": 50.0}, step)
        tracker.metrics(run, {"train/tokens_per_s_steady": 50.0 + number, "train/final_loss": 0.5, "train/usd": 1.0}, 3)
        tracker.finish(run, "FINISHED")
        run = tracker.start(f"evaluate {name}", "evaluate", parent=parent, params={"eval": {"task": "rtl"}})
        tracker.metrics(run, {"eval/heldout/pass_at_1": 0.25 + number / 4, "eval/seconds": 3.0}, 0)
        tracker.finish(run, "FINISHED")
    tracker.finish(parent, "FINISHED")
    return tracker


def test_the_filter_of_a_view_finds_its_runs(tracker: MlflowTracker) -> None:
    for view, count in zip(VIEWS, (2, 2), strict=True):
        assert len(tracker._client.search_runs([tracker.experiment()], view.filter)) == count


def test_a_view_opens_with_its_charts_and_without_an_error(tracker: MlflowTracker, checkout: Path) -> None:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("There is no Chromium here. Run: make browser")
    shots = checkout / "outputs" / "browser"
    shots.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([*tracker.ui_arguments(port), "--workers", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"{address}/health")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            for view, charts in zip(VIEWS, (("train/loss", "train/usd"), ("eval/heldout/pass_at_1", "eval/seconds")), strict=True):
                page = browser.new_page(viewport={"width": 1600, "height": 1200})
                page.goto(tracker.prepare_views(address)[view.title])
                page.locator(".js-plotly-plot").first.wait_for(timeout=60_000)  # A chart without runs is none of plotly's.
                page.get_by_text(charts[-1]).first.wait_for(timeout=60_000)
                page.screenshot(path=shots / f"mlflow-{view.key}.png")
                text = page.locator("body").inner_text()
                assert all(chart in text for chart in charts)
                assert not re.search(r"INVALID_PARAMETER_VALUE|[Ii]nvalid|[Ee]rror", text), text
                page.close()
            browser.close()
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
