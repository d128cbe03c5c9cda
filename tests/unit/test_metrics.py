"""Metrics: each key is written once, and an installed package's metric is logged, compared and limited as ours are."""

import ast
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import crossmesh
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.errors import InputError
from crossmesh.metrics import DECLARED, FINAL_LOSS, TOKENS, TOKENS_PER_S, WALL_CLOCK, added_metrics, added_totals
from crossmesh.report.pages.write import make_report
from crossmesh.report.regression import judge_regressions
from crossmesh.report.trained_run import training_summary
from crossmesh.report.variants import Results, RunRecord, Variant
from crossmesh.track.tracker import Tracker
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.trial_log import totals_of

PACKAGE = Path(crossmesh.__file__).parent
JOULES = """
from crossmesh.metrics import LOWER, TOKENS, WALL_CLOCK, Metric

CHIP_WATTS = 300.0

def joules(totals):
    return CHIP_WATTS * totals[WALL_CLOCK.key] / totals[TOKENS.key] if totals.get(TOKENS.key) else None

HOW = "at the rated power of a chip"
JOULES = Metric("joules_per_token", "Energy of a token", "J/token", HOW, LOWER, "train/joules_per_token", compute=joules)
TAKEN = Metric("tokens_per_s", "Speed", "tokens/s", key="train/other", compute=joules)
TAKEN_STEP = Metric("other", "Speed", "tokens/s", key="train/tokens_per_s", compute=joules)
BROKEN = Metric("broken", "Broken", "J", key="train/broken", compute=lambda totals: totals["train/nothing"])
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs a package with this entry point."""

    def install(value: str) -> None:
        folder = tmp_path / "watts-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: watts\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[crossmesh.metrics]\njoules = {value}\n")
        (tmp_path / "watts_of_a_test.py").write_text(JOULES)
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def trained(tracker: Tracker, spec: ExperimentSpec, seconds: float) -> Variant:
    steps = (SimpleNamespace(real_tokens=600), SimpleNamespace(real_tokens=400))
    result: Any = SimpleNamespace(
        final_loss=1.5, tokens_per_s=100.0, padded_tokens_per_s=120.0, seconds=seconds, loss_tokens=500, history=steps,
        rented_s=lambda _: seconds, steady_missing_slices=0,
    )  # fmt: skip
    run_id = tracker.start("jax", "train")
    tracker.metrics(run_id, totals_of(spec, result, None) | {TOKENS.key: 1000.0}, 2)
    tracker.finish(run_id)
    run = tracker.run(run_id)
    science = {"science": {"rows": "r", "steps": [[0], [1]]}, "system": {"backend": "jax"}, "provenance": {}}
    record = RunRecord("jax", science["science"], science["system"], science["provenance"])
    return Variant(f"run{seconds:g}", "jax", record, training=training_summary(run, (), None), run_id=run_id)


def test_a_metric_of_an_installed_package_is_logged_compared_and_limited(installed: Callable[[str], None], tmp_path: Path) -> None:
    installed("watts_of_a_test:JOULES")
    spec = ExperimentSpec(storage=StorageSpec(str(tmp_path / "storage")))
    tracker = open_tracker(spec.tracking, spec.storage)
    fast, slow = (trained(tracker, spec, seconds) for seconds in (10.0, 20.0))
    assert tracker.run(fast.run_id or "").metrics["train/joules_per_token"] == 300.0 * 10.0 / 1000.0
    report = make_report(Results("x", (fast, slow), "command"))
    (quantity,) = (one for one in report.found.quantities if one.key == "joules_per_token")
    assert (quantity.label, quantity.unit, quantity.better, quantity.aspect) == ("Energy of a token", "J/token", "lower", "speed")
    assert {name: one.value for name, one in quantity.estimates.items()} == {"run10": 3.0, "run20": 6.0}
    folder = report.write(tmp_path / "report").parent
    for name in ("report.html", "report.md", "report.json"):
        assert "Energy of a token" in (folder / name).read_text()
    (limit,) = judge_regressions(report, (fast.run_id or "", slow.run_id or ""), {"joules_per_token": "5%"})
    assert limit.change.value == pytest.approx(1.0)


def test_without_such_a_package_nothing_is_added(tmp_path: Path) -> None:
    assert added_metrics() == ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("watts_of_a_test:TAKEN", r"The metric 'tokens_per_s' \(train/other\) of an installed package exists already"),
        ("watts_of_a_test:TAKEN_STEP", r"The metric 'other' \(train/tokens_per_s\) of an installed package exists already"),
        ("watts_of_a_test:joules", "has the wrong type: expected a Metric with `compute`"),
        ("no_such_module_of_ours:JOULES", "cannot be imported"),
    ],
)
def test_what_a_package_declares_is_checked(installed: Callable[[str], None], value: str, said: str) -> None:
    installed(value)
    with pytest.raises(InputError, match=said):
        added_metrics()


def test_one_that_cannot_be_computed_is_named(installed: Callable[[str], None]) -> None:
    installed("watts_of_a_test:BROKEN")
    with pytest.raises(InputError, match=r"The metric 'broken' .* could not be computed \(KeyError: 'train/nothing'\).*run the same"):
        added_totals({})


def test_keys_of_mlflow_stay_as_they_were() -> None:
    assert (FINAL_LOSS.key, FINAL_LOSS.step) == ("train/final_loss", "train/loss")
    assert (TOKENS_PER_S.key, TOKENS_PER_S.step) == ("train/tokens_per_s_steady", "train/tokens_per_s")
    assert WALL_CLOCK.key == "train/seconds"


def test_no_key_is_written_elsewhere_in_the_package() -> None:
    """MLflow keys anywhere; names of quantities in the rooms that show or compute them."""
    keys = {key for one in DECLARED.values() for key in (one.key, one.step) if key}
    names = {one.name for one in DECLARED.values() if "_" in one.name} | {"mfu"}
    others = {"usd_per_hour", "adapter_mib"}  # The first is also a key of the price of a plan.
    written = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts
        forbidden = keys | (names - others if room[0] in ("bench", "report", "track") and room[:2] != ("report", "plans") else set())
        if room != ("metrics.py",):
            found = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            written += [f"{'/'.join(room)}: {value}" for value in found if isinstance(value, str) and value in forbidden]
    assert written == []
