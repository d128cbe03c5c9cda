"""A plan from its first point to its exit code: progress, what is compiled, Ctrl-C, MLflow, and a store that is away."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.compose import INTERRUPTED, restore_spec
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import HardwareSpec, MeshSpec
from crossmesh.errors import InputError
from crossmesh.paper import training
from crossmesh.paper.training import report_paper
from crossmesh.pipeline import plans
from crossmesh.pipeline.plans import Plans
from crossmesh.plan import planner
from crossmesh.plan.figures import Compiled
from crossmesh.plan.planner import Planner
from crossmesh.plan.point import TrainingPoint
from crossmesh.track.run_log import TrackingError
from plan_points import paper_spec

TODAY = date(2026, 6, 1)


class Libtpu:
    """A compiler that answers at once, or is interrupted at the n-th point."""

    def __init__(self, reason: str = "", interrupted_at: int = 0) -> None:
        self.asked: list[TrainingPoint] = []
        self._reason, self._interrupted_at = reason, interrupted_at

    def serves(self, point: TrainingPoint) -> bool:
        return point.backend == "jax"

    def find(self, point: TrainingPoint) -> Compiled | None:
        return None

    def missing(self) -> str:
        return self._reason

    def compile(self, point: TrainingPoint) -> Compiled:
        self.asked.append(point)
        if len(self.asked) == self._interrupted_at:
            raise KeyboardInterrupt
        return Compiled("libtpu", 30e9, {"arguments": 30e9}, 1e14, None, 0.5, extrapolated=True)


class Runs:
    """A tracker that remembers its runs."""

    keeps_runs = True

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def start(self, name: str, kind: str, **more: Any) -> str:
        self.runs.append({"name": name, "kind": kind, **more})
        return str(len(self.runs) - 1)

    def metrics(self, run_id: str, values: dict[str, float], step: int) -> None:
        self.runs[int(run_id)]["metrics"] = values

    def artifact_folder(self, run_id: str, folder: Path, place: str) -> None:
        self.runs[int(run_id)]["files"] = sorted(path.name for path in folder.iterdir())

    def finish(self, run_id: str, status: str = "FINISHED") -> None:
        self.runs[int(run_id)]["status"] = status


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    return paper_spec(storage=StorageSpec(str(tmp_path)))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    tracked = Runs()
    monkeypatch.setattr(planner, "open_tracker", lambda *_: tracked)
    return tracked


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """No charts: they take a second, and have tests of their own."""

    def written(title: str, records: Any, notes: Any, values: Any, folder: Path, sheets: Any = ()) -> Path:
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(values))
        return folder / "plan.html"

    monkeypatch.setattr(plans, "write_plan", written)
    monkeypatch.setattr(training, "write_plan", written)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Libtpu]:
    def made(**how: Any) -> Libtpu:
        one = Libtpu(**how)
        monkeypatch.setattr(planner, "own_planner", lambda spec, tracker=None: Planner(spec.plan, TODAY, (one,)))
        return one

    return made


def planned(spec: ExperimentSpec, *points: tuple[str, ExperimentSpec], ended: int = 0) -> None:
    """Plan `spec`, or the first points of a sweep of three."""
    collected = Plans()
    with collected.collecting("command"):
        if points:
            collected.expect(3)
        for override, point in points or (("", spec),):
            collected.add(("experiment=paper", override) if override else (), point, "json", "")
        if ended:
            raise SystemExit(ended)


def result(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_point_is_compiled_and_is_one_run(spec: ExperimentSpec, runs: Runs, compiler: Any, capsys: pytest.CaptureFixture[str]) -> None:
    compiler()
    planned(spec)
    values = result(capsys)
    assert (values["fits"], values["hbm_source"], values["hbm_bytes_per_chip"], values["run_id"]) == (True, "compiled", 30e9, "0")
    (run,) = runs.runs
    assert (run["kind"], run["status"], run["metrics"]["plan/hbm_bytes_per_chip"]) == ("plan", "FINISHED", 30e9)
    assert run["params"] == spec
    assert run["files"] == ["plan.json"]


def test_a_compiler_that_is_missing_is_a_note_and_with_always_an_error(
    spec: ExperimentSpec, runs: Runs, compiler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler(reason="`make compiler` fetches it.")
    planned(spec)
    values = result(capsys)
    assert values["hbm_source"] == "modelled"
    assert "`make compiler` fetches it." in values["notes"]
    with pytest.raises(InputError, match=r"plan\.compile=always: `make compiler` fetches it\."):
        planned(replace(spec, plan=replace(spec.plan, compile="always")))


def test_a_sweep_has_a_run_for_each_point_below_its_own(
    spec: ExperimentSpec, runs: Runs, compiler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = compiler().asked
    too_wide = replace(spec, hardware=HardwareSpec("tpu_v6e_8"), mesh=MeshSpec(fsdp=1, tp=8))
    fsdp = replace(spec, mesh=MeshSpec(fsdp=2, tp=2))
    planned(spec, ("mesh.tp=4", spec), ("mesh.tp=2", fsdp), ("mesh.tp=8", too_wide))
    values = result(capsys)
    assert [one["swept"] for one in values["points"]] == [{"mesh.tp": "4"}, {"mesh.tp": "2"}, {"mesh.tp": "8"}]
    assert [one["hbm_source"] for one in values["points"]] == ["compiled", "compiled", None]
    assert len(asked) == 2
    parent, *children = runs.runs
    assert parent["params"] == {"experiment": "paper", "points": 3}
    assert [(one["kind"], one["parent"]) for one in children] == [("plan-point", "0")] * 3
    assert children[2]["tags"]["crossmesh.rejected_because"].startswith("layers.5.attn.k_einsum.w")
    assert children[0]["params"]["mesh.tp"] == "4"


def test_ctrl_c_shows_what_is_planned(spec: ExperimentSpec, runs: Runs, compiler: Any, capsys: pytest.CaptureFixture[str]) -> None:
    compiler()
    with pytest.raises(SystemExit) as ended:
        planned(spec, ("mesh.tp=4", spec), ("mesh.tp=2", replace(spec, mesh=MeshSpec(fsdp=2, tp=2))), ended=INTERRUPTED)
    assert ended.value.code == INTERRUPTED
    values = result(capsys)
    assert len(values["points"]) == 2
    assert any(note.startswith("Interrupted: 2 of 3 points are planned") for note in values["notes"])
    assert runs.runs[0]["status"] == "KILLED"


def test_ctrl_c_while_compiling_keeps_what_is_compiled(
    spec: ExperimentSpec, runs: Runs, compiler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler(interrupted_at=2)
    with pytest.raises(SystemExit) as ended:
        planned(spec, ("mesh.tp=4", spec), ("mesh.tp=2", replace(spec, mesh=MeshSpec(fsdp=2, tp=2))))
    assert ended.value.code == INTERRUPTED
    assert sorted(one["hbm_source"] for one in result(capsys)["points"]) == ["compiled", "modelled"]


def test_other_errors_pass_and_show_nothing(spec: ExperimentSpec, runs: Runs, compiler: Any) -> None:
    compiler()
    with pytest.raises(SystemExit) as ended:
        planned(spec, ended=2)
    assert (ended.value.code, runs.runs) == (2, [])


def test_without_mlflow_a_plan_is_made_and_says_so(
    spec: ExperimentSpec, compiler: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*_: Any) -> Any:
        raise TrackingError("The server is away.")

    monkeypatch.setattr(planner, "open_tracker", away)
    compiler()
    planned(spec)
    values = result(capsys)
    assert (values["fits"], values["run_id"]) == (True, None)
    assert "Neither calibrated by own runs nor logged. The server is away." in values["notes"]


def test_a_kept_spec_is_the_spec_again(spec: ExperimentSpec) -> None:
    assert restore_spec(json.loads(json.dumps(asdict(spec)))) == spec
    with pytest.raises(InputError, match="does not fit this version"):
        restore_spec({"model": {"no_such_key": 1}})


def test_the_recomputed_paper_is_a_run_with_one_below_it_for_each_way_to_train(
    tmp_path: Path, spec: ExperimentSpec, runs: Runs, compiler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler()
    report_paper(spec, tmp_path / "paper", "json", "command")
    values = result(capsys)
    said = values["runs"]
    assert any("modelled, not calibrated" in note for note in values["notes"])
    parent, *below = runs.runs
    assert (parent["name"], parent["status"], parent["tags"]["crossmesh.command"]) == ("paper", "FINISHED", "command")
    assert [one["name"] for one in below] == [one["label"] for one in said]
    assert all(one["parent"] == "0" for one in below)
    assert "plan.json" in parent["files"]
