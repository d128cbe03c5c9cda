"""What is asked of the compiler, and what its answers say together."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.compose import compose_spec
from crossmesh.config.training import LoraSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.lora import lora_modules
from crossmesh.plan.compilers import asking, compiled
from crossmesh.plan.compilers.compiled import TpuCompiler, compile_question
from crossmesh.plan.compilers.workers import WorkerAnswer
from crossmesh.plan.model import planned_model
from crossmesh.plan.point import TrainingPoint, training_point
from crossmesh.plan.store.store import AnswerStore, Maker
from crossmesh.plan.training.memory import training_memory
from plan_points import GEMMA, MODEL, paper_point

NOW = Maker("sources", {"jax": "0.10.2", "libtpu": "0.0.42.1"})
OF_SIX = {"hbm_bytes": 5e9, "memory": {"weights": 4e9, "temporaries": 1e9}, "flops": 20e12, "bytes": 1e12, "seconds": 0.1}
OF_TWELVE = {"hbm_bytes": 7e9, "memory": {"weights": 5.5e9, "temporaries": 1.5e9}, "flops": 36e12, "bytes": 1.5e12, "seconds": 0.16}


@pytest.fixture
def store(tmp_path: Path) -> AnswerStore:
    return AnswerStore(tmp_path, shipped=tmp_path / "none", now=lambda _: NOW)


def keep(store: AnswerStore, point: TrainingPoint, *values: dict[str, Any], made_with: dict[str, str] | None = None) -> None:
    depths = compiled._depths(point.model)
    assert depths is not None
    for kept, value in zip(depths.layers, values, strict=False):
        store.keep(compile_question(point, kept), value, 60.0, made_with or dict(NOW.versions))


def test_two_depths_say_what_the_whole_model_needs(store: AnswerStore) -> None:
    keep(store, paper_point(), OF_SIX, OF_TWELVE)
    found = TpuCompiler(store, Console()).find(paper_point())
    assert found is not None
    assert found.hbm_bytes == pytest.approx(5e9 + 9 * 2e9)
    assert found.memory == pytest.approx({"weights": 4e9 + 9 * 1.5e9, "temporaries": 1e9 + 9 * 0.5e9})
    assert (found.flops, found.bytes, found.seconds) == pytest.approx((164e12, 5.5e12, 0.64))
    assert (found.extrapolated, found.by, found.warnings) == (True, "libtpu 0.0.42.1, jax 0.10.2", ())


def test_one_depth_is_no_answer_and_the_whole_model_goes_before_both(store: AnswerStore) -> None:
    keep(store, paper_point(), OF_SIX)
    assert TpuCompiler(store, Console()).find(paper_point()) is None
    keep(store, paper_point(), OF_SIX, OF_TWELVE)
    store.keep(compile_question(paper_point()), OF_SIX | {"hbm_bytes": 21e9}, 268.0, NOW.versions)
    found = TpuCompiler(store, Console()).find(paper_point())
    assert found is not None
    assert (found.hbm_bytes, found.extrapolated) == (21e9, False)


def test_a_stale_answer_says_so_and_a_current_one_goes_before_it(store: AnswerStore) -> None:
    store.keep(compile_question(paper_point()), OF_SIX, 268.0, {"jax": "0.9.0"})
    stale = TpuCompiler(store, Console()).find(paper_point())
    assert stale is not None
    assert stale.warnings == ("The figures compiled or traced are stale, made with another: jax 0.9.0.",)
    keep(store, paper_point(), OF_SIX, OF_TWELVE)
    current = TpuCompiler(store, Console()).find(paper_point())
    assert current is not None
    assert (current.extrapolated, current.warnings) == (True, ())


def test_a_depth_that_needs_too_much_has_memory_alone(store: AnswerStore) -> None:
    keep(store, paper_point(), OF_SIX, {"hbm_bytes": 40e9, "memory": {"weights": 5.5e9, "temporaries": 34.5e9}})
    found = TpuCompiler(store, Console()).find(paper_point())
    assert found is not None
    assert found.hbm_bytes == pytest.approx(5e9 + 9 * 35e9)
    assert (found.flops, found.seconds) == (None, None)


@pytest.mark.parametrize(
    "changes",
    [
        {"slice": find_slice("tpu_v6e_8")},
        {"mesh": MeshShape(1, 4, 1)},
        {"micro": 2},
        {"length": 4096},
        {"remat": "none"},
        {"attention": "splash"},
        {"batch": 1},
        {"dropout": True},
        {"clip": False},
        {"spec": ModelSpec(family="gemma4", dtype="float32")},
        {"spec": ModelSpec(family="gemma4", dtype="bfloat16", quantization="nf4")},
        {"model": planned_model(GEMMA, ())},
        {"model": planned_model(GEMMA, lora_modules(LoraSpec(rank=64, rank_pattern={"q_proj": 8}), GEMMA))},
    ],
)
def test_what_changes_the_step_is_another_question(changes: dict[str, Any]) -> None:
    assert compile_question(paper_point(**changes)).digest != compile_question(paper_point()).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 7},
        {"batch": 64},
        {"loss_share": 0.1},
        {"packed": True},
        {"spec": ModelSpec(family="gemma4", weights="/somewhere", dtype="bfloat16")},
        {"model": planned_model(GEMMA, lora_modules(LoraSpec(rank=64, alpha=128.0), GEMMA))},
        {"model": planned_model(replace(GEMMA, prefix="model.language_model."), MODEL.modules)},
    ],
)
def test_what_does_not_change_the_step_is_the_same_question(changes: dict[str, Any]) -> None:
    assert compile_question(paper_point(**changes)).digest == compile_question(paper_point()).digest


def test_only_absent_depths_are_compiled_and_each_is_kept_at_once(
    store: AnswerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libtpu").mkdir()
    monkeypatch.setenv("CROSSMESH_COMPILER", str(tmp_path))
    asked = []

    def interrupted(kind: str, questions: Any, log: Path, on_tick: Any) -> Any:
        asked.append([len(one["layers"]) for one in questions])
        on_tick(0, 3.0)
        yield WorkerAnswer(0, OF_SIX if len(questions) == 2 else OF_TWELVE, 60.0, NOW.versions)
        if len(questions) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(asking, "run_compiler_worker", interrupted)
    compiler = TpuCompiler(store, Console())
    with pytest.raises(KeyboardInterrupt):
        compiler.compile(paper_point())
    assert compiler.compile(paper_point()).hbm_bytes == pytest.approx(23e9)
    assert compiler.compile(paper_point()) == compiler.find(paper_point())
    assert asked == [[6, 12], [12]]


def test_without_the_compiler_one_is_told_how_to_get_it(store: AnswerStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CROSSMESH_COMPILER", str(tmp_path / "none"))
    with pytest.raises(InputError, match="make compiler"):
        TpuCompiler(store, Console()).compile(paper_point())


def test_other_chips_and_backends_are_not_its_own(store: AnswerStore) -> None:
    compiler = TpuCompiler(store, Console())
    assert compiler.serves(paper_point())
    assert not compiler.serves(paper_point(slice=find_slice("gpu_2xh100")))
    assert not compiler.serves(paper_point(slice=find_slice("tpu_v7x_8")))  # Two devices of JAX a chip.
    assert not compiler.serves(paper_point(slice=find_slice("cpu")))


def test_the_papers_run_on_tpu_comes_with_an_answer(tmp_path: Path) -> None:
    spec = compose_spec(Path(__file__).resolve().parents[4] / "conf", "experiment=gemma4_31b_codev_v5p8_tp4")
    found = TpuCompiler(AnswerStore(tmp_path), Console()).find(training_point(spec))
    assert found is not None
    assert found.memory["weights"] == pytest.approx(training_memory(training_point(spec)).weights)
    assert found.by == "libtpu 0.0.42.1, jax 0.10.2"
