"""What a sweep looks like: every point with where it stands, the reasons, the money against the budget; and who asks from elsewhere."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.files import write_json
from crossmesh.sweep.runs import as_result
from crossmesh.sweep.state import DONE, REJECTED, RUNNING, STOPPED, WAITING, Point, SweepState, write_state
from crossmesh.sweep.status import show, sweep_status
from crossmesh.sweep.view import SweepView, last_table, left_s, live_table, progress_text

POINTS = (
    Point(
        "a", "micro=1", state=DONE, step=9, steps=9, loss=1.25, tokens_per_s=1234.5, seconds=1800, usd_per_hour=16.0, run_id="0123456789"
    ),
    Point("b", "micro=2", state=RUNNING, stage="training", step=3, steps=9, loss=2.0, tokens_per_s=99.0, left_s=65.0, seconds=900),
    Point("c", "micro=3", state=REJECTED, reason="[does] not fit", exit_code=3),
    Point("d", "micro=4", state=WAITING),
)
STATE = SweepState("i", "finetune", "demo", "python jobs/finetune.py -m", "runid", at=time.time(), max_usd=20, points=POINTS)


def text_of(shown: RenderableType) -> str:
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get()


def test_the_live_table_has_stage_step_rate_time_left_and_the_money() -> None:
    text = text_of(live_table(STATE))
    assert "4 points: 1 running, 1 waiting, 1 done, 1 rejected; spent 0.75 hours, 8.00 of 20 USD" in text
    running = next(line for line in text.splitlines() if "micro=2" in line)
    for cell in ("running", "3/9", "2.0000", "99", "1 min 05 s", "15 min 00 s", "training"):
        assert cell in running, running
    table = text[text.index("stage") :]
    assert table.index("micro=2") < table.index("micro=1") < table.index("micro=4")


def test_a_running_sweep_says_how_far_it_is_how_long_it_will_take_and_what_is_best_so_far(capsys: pytest.CaptureFixture[str]) -> None:
    # One ran 1,800 s; one will have run 965; so the one that waits is taken for their mean.
    assert left_s(STATE) == pytest.approx(65 + (1800 + 965) / 2)
    said = "2/4 ended, about 24 min 08 s left; lowest loss so far 1.2500 (micro=1); highest tokens/s so far 1,234 (micro=1)"
    assert progress_text(STATE) == said
    assert said in text_of(live_table(STATE))
    SweepView(live=True).show(STATE)
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_time_left_is_shared_by_those_that_run_together_and_is_not_guessed() -> None:
    two = tuple(Point(str(n), "", state=RUNNING, seconds=10, left_s=left) for n, left in enumerate((90.0, 90.0)))
    waiting = tuple(Point(f"w{n}", "", state=WAITING) for n in range(4))
    assert left_s(replace(STATE, points=(*two, *waiting))) == pytest.approx((180 + 400) / 2)
    assert left_s(replace(STATE, points=(replace(two[0], left_s=500.0), replace(two[1], left_s=10.0)))) == 500.0
    unknown = replace(STATE, points=(replace(two[0], left_s=None), *waiting))
    assert left_s(unknown) is None
    assert progress_text(unknown) == "0/5 ended, time left not known yet"
    assert progress_text(replace(STATE, points=POINTS[:1])).startswith("1/1 ended; lowest loss")


def test_an_emulated_rate_and_a_loss_that_is_none_are_no_best_so_far() -> None:
    points = (replace(POINTS[0], emulated=True), replace(POINTS[0], key="n", loss=float("nan"), tokens_per_s=None))
    assert progress_text(replace(STATE, points=points)) == "2/2 ended; lowest loss so far 1.2500 (micro=1)"


def test_the_last_table_keeps_the_order_and_says_why_as_it_was_said() -> None:
    text = text_of(last_table(replace(STATE, over="The budget is reached.")))
    assert text.index("micro=1") < text.index("micro=2") < text.index("micro=3")
    assert "micro=3: [does] not fit" in text
    assert "The budget is reached." in text
    said = as_result(STATE, 3)
    assert (said["done"], said["rejected"], said["usd"], said["exit_code"]) == (1, 1, 8.0, 3)


def test_without_a_terminal_what_changes_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    view = SweepView(live=True)
    view.show(STATE)
    view.show(STATE)
    lines = capsys.readouterr().err.splitlines()
    assert [line.strip().partition(":")[0] for line in lines] == ["micro=1", "micro=2", "micro=3"]
    assert "step 3/9, 99 tokens/s, 1 min 05 s left" in lines[1]


@pytest.mark.parametrize("alive", [True, False])
def test_a_driver_that_is_not_heard_of_does_not_run_and_neither_do_its_points(tmp_path: Path, *, alive: bool) -> None:
    spec = ExperimentSpec(storage=StorageSpec(str(tmp_path)))
    folder = tmp_path / "sweeps" / "one"
    write_state(folder, STATE)
    write_state(tmp_path / "sweeps" / "older", replace(STATE, run_id="other", at=1.0))
    said = {"machine": "elsewhere", "pid": 1, "started": 0, "beat": 1, "at": time.time() - (1 if alive else 600), "released": False}
    write_json(folder / "lease" / "1.json", said)
    now = sweep_status(spec, "")
    assert (now.state.run_id, now.alive, now.state.points[1].state) == ("runid", alive, RUNNING if alive else STOPPED)
    assert sweep_status(spec, "oth").state.run_id == "other"
    console = Console(width=160, record=True)
    show(now, console)
    assert ("Its command continues it: python jobs/finetune.py -m" in console.export_text()) is not alive
