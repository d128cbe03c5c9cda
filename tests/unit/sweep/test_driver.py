"""A sweep from its points to its exit code, with work that takes no time and a tracker that only remembers."""

import contextlib
import io
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.job import Job
from crossmesh.config.planning import PlanSpec
from crossmesh.config.points import SweptJob
from crossmesh.config.services import StorageSpec
from crossmesh.config.sweep import SweepKeys, SweepSpec
from crossmesh.config.training import OptimSpec
from crossmesh.errors import CrossmeshError, InputError, RejectedError
from crossmesh.plan.planner import Planner
from crossmesh.sweep import driver
from crossmesh.sweep.policy import Need
from crossmesh.sweep.request import request_of
from crossmesh.sweep.state import SweepState, read_state
from crossmesh.sweep.work import Hooks, Ran
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.train.events import StartEvent
from crossmesh.train.loop import DivergedError

HOURS = 3600.0


class Store:
    """A tracker that remembers what it was told."""

    uri = "here"

    def __init__(self, *_: object) -> None:
        self.runs: dict[str, dict[str, Any]] = {}

    def resume_kept(self, file: Path) -> str | None:
        return str(json.loads(file.read_text())["run_id"]) if file.is_file() else None

    def start(self, name: str, kind: str, **given: Any) -> str:
        self.runs[f"run{len(self.runs)}"] = {"name": name, "kind": kind, **given}
        return f"run{len(self.runs) - 1}"

    def find(self, identity: str, status: str) -> Any:
        found = [run_id for run_id, run in self.runs.items() if run["identity"] == identity and run.get("status") == status]
        return TrackedRun(found[0], "", status) if found else None

    def finish(self, run_id: str, status: str) -> None:
        self.runs.setdefault(run_id, {})["status"] = status

    def artifact_text(self, *_: object) -> None:
        pass

    metrics = artifact_text

    def recent(self, kind: str) -> tuple[TrackedRun, ...]:
        assert kind == "repeat"
        return ()

    def children(self, _run_id: str) -> tuple[TrackedRun, ...]:
        return ()


class Work:
    """What is done at a point, by its number of steps."""

    live = True

    def __init__(self) -> None:
        self.does: dict[int, Callable[[Hooks], None]] = {}
        self.done: set[int] = set()
        self.started: list[int] = []
        self.price: float | None = 36.0

    def gate(self, spec: ExperimentSpec, _planner: object) -> None:
        if spec.optim.steps > 90:
            raise RejectedError("does not fit")

    def need(self, _spec: ExperimentSpec) -> Need:
        return Need("CPU", 1)

    def usd_per_hour(self, _spec: ExperimentSpec) -> float | None:
        return self.price

    def run(self, spec: ExperimentSpec, _tracker: object, hooks: Hooks) -> Ran:
        steps = spec.optim.steps
        if steps in self.done:
            return Ran(f"r{steps}", skipped=True)
        self.started.append(steps)
        hooks.on_event(StartEvent("starting"))
        if does := self.does.get(steps):
            does(hooks)
        self.done.add(steps)
        return Ran(f"r{steps}", skipped=False, steps=steps, loss=1.0, tokens_per_s=5.0)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    store = Store()
    monkeypatch.setattr(driver, "Tracker", lambda *_: store)
    monkeypatch.setattr(driver, "ray_session", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(driver, "own_planner", lambda *_: Planner(PlanSpec(), date(2026, 6, 1)))
    monkeypatch.setattr(driver, "_POLL_S", 0.01)
    monkeypatch.setattr(driver, "_room", lambda _kinds: {"CPU": 2.0})
    return Work()


def swept(root: Path, *steps: int, **limits: Any) -> list[SweptJob[SweepKeys]]:
    keys = SweepKeys("json", SweepSpec(**limits))
    specs = [replace(ExperimentSpec(storage=StorageSpec(str(root))), optim=OptimSpec(steps=count)) for count in steps]
    return [SweptJob((f"optim.steps={count}", "a=b"), Job(spec, keys)) for count, spec in zip(steps, specs, strict=True)]


def run(work: Work, points: list[SweptJob[SweepKeys]], *, launcher: str = "basic", force: bool = False) -> tuple[int, dict[str, Any]]:
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            driver.run_sweep(request_of("finetune", points, launcher, lambda _: force), work, "the command")
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, json.loads(out.getvalue().splitlines()[-1])


def fail(error: Exception) -> Callable[[Hooks], None]:
    def raising(_hooks: Hooks) -> None:
        raise error

    return raising


def test_what_fails_ends_no_sweep_and_the_same_command_does_only_the_rest(work: Work, tmp_path: Path) -> None:
    work.does = {2: fail(CrossmeshError("broke")), 3: fail(DivergedError("nan at step 2")), 4: fail(ValueError("a bug"))}
    points = swept(tmp_path, 1, 2, 3, 4, 5, 99)
    code, said = run(work, points)
    assert (code, said["done"], said["failed"], said["rejected"]) == (1, 2, 3, 1)
    assert sorted(work.started) == [1, 2, 2, 3, 4, 4, 5]
    reasons = {one["point"]: one["reason"] for one in said["points"]}
    assert reasons["optim.steps=3"] == "nan at step 2"
    assert reasons["optim.steps=99"] == "does not fit"
    assert "ValueError: a bug Full log:" in reasons["optim.steps=4"]
    work.started, work.does = [], {}
    code, again = run(work, points)
    assert (code, again["skipped"], again["failed"], work.started) == (1, 2, 3, [])  # Tried twice, and divergence once.
    assert again["sweep"] == said["sweep"]
    work.started = []
    code, again = run(work, swept(tmp_path, 1, 2, 3, 4, 5, 99, retries=2))
    assert (code, again["done"], again["failed"], work.started) == (1, 2, 1, [2, 4])
    code, forced = run(work, points, force=True)
    assert (code, forced["failed"], forced["rejected"]) == (3, 0, 1)


def test_a_sweep_ends_with_its_best_or_why_there_is_none(work: Work, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(work, swept(tmp_path, 1, 2))
    assert code == 0
    assert [(one["quantity"], one["decided"]) for one in said["verdicts"]] == [
        ("loss", False),
        ("tokens/s", False),
        ("USD per million tokens", False),
    ]
    err = capsys.readouterr().err
    assert "loss: 1.0000 nats/token; no difference that matters: equal within 0.001 nats/token: optim.steps=1, optim.steps=2" in err
    assert "tokens/s: not decided: one run each; first is optim.steps=1 with 5 tokens/s, 0.0% ahead of optim.steps=2" in err
    assert "USD per million tokens: not decided: one run each; first is optim.steps=1 with 2000.0000" in err
    assert f"to decide it: python jobs/compare.py sweep={said['sweep']} repeat=3" in err
    assert "2/2 ended; lowest loss so far 1.0000 (optim.steps=1); highest tokens/s so far 5 (optim.steps=1)" in err


def test_at_the_budget_nothing_starts_what_runs_stops_and_a_higher_one_continues(work: Work, tmp_path: Path) -> None:
    def long(hooks: Hooks) -> None:
        for _ in range(1000):
            hooks.check()
            time.sleep(0.01)

    work.does = {2: long}
    limit = 0.3 / HOURS * 36  # 0.3 s of the hardware.
    code, said = run(work, swept(tmp_path, 1, 2, 3, max_usd=limit))
    assert (code, said["done"], said["stopped"], work.started) == (4, 1, 2, [1, 2])
    assert limit <= said["usd"] < 3 * limit
    assert "reaches sweep.max_usd" in said["over"]
    code, again = run(work, swept(tmp_path, 1, 2, 3, max_usd=limit))
    assert (code, again["skipped"], again["stopped"], work.started) == (4, 1, 2, [1, 2])
    assert again["usd"] == said["usd"]
    work.does = {}
    code, more = run(work, swept(tmp_path, 1, 2, 3, max_usd=100))
    assert (code, more["skipped"], more["done"], more["sweep"]) == (0, 1, 2, said["sweep"])
    assert more["usd"] >= said["usd"]


def test_on_a_cluster_as_many_run_as_there_is_room_for(work: Work, tmp_path: Path) -> None:
    together, most, lock = 0, 0, threading.Lock()

    def counted(_hooks: Hooks) -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.15)
        with lock:
            together -= 1

    work.does = dict.fromkeys(range(1, 6), counted)
    code, said = run(work, swept(tmp_path, 1, 2, 3, 4, 5), launcher="ray")
    assert (code, said["done"], most) == (0, 5, 2)


def test_an_interrupt_stops_what_runs_and_is_passed_on(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def until_stopped(hooks: Hooks) -> None:
        try:
            while True:
                hooks.check()
                time.sleep(0.01)
        finally:
            stopped.set()

    work.does = {1: until_stopped}
    write = driver._Sweep._write

    def interrupted(self: Any, run: Any) -> None:
        write(self, run)
        if work.started and not stopped.is_set():
            monkeypatch.setattr(driver._Sweep, "_write", write)
            raise KeyboardInterrupt

    monkeypatch.setattr(driver._Sweep, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(work, swept(tmp_path, 1, 2))
    assert stopped.is_set()
    state = read_state(next((tmp_path / "sweeps").iterdir()))
    assert isinstance(state, SweepState)
    assert [point.state for point in state.points] == ["stopped", "waiting"]
    assert state.points[0].seconds > 0


def test_what_cannot_be_one_sweep_is_said(work: Work, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Give each of their keys one value"):
        run(work, [*swept(tmp_path / "a", 1), *swept(tmp_path / "b", 2)])
    with pytest.raises(InputError, match=r"No point of the sweep is possible\. because"):
        run(work, [SweptJob(("a=1",), InputError("because"))])
    work.price = None
    with pytest.raises(InputError, match="no on_demand price of cpu"):
        run(work, swept(tmp_path, 1, max_usd=1))
    work.live = False
    with pytest.raises(InputError, match="points that share a machine"):
        run(work, swept(tmp_path, 1), launcher="ray")
