"""What is asked of a trace and what its answer becomes; nothing is traced."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.training import LoraSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.lora import lora_modules
from crossmesh.plan.compilers import asking
from crossmesh.plan.compilers.traced import GpuTrace, lora_fields, trace_question
from crossmesh.plan.compilers.workers import WorkerAnswer
from crossmesh.plan.figures import micro_flops
from crossmesh.plan.model import known_config, planned_model
from crossmesh.plan.store.store import AnswerStore, Maker
from crossmesh.plan.training.memory import kept_bytes, training_memory
from plan_points import GEMMA, MODEL, paper_point

VALUE = {"hbm_bytes": 5e10, "memory": {"weights": 3e10, "activations": 2e10}, "flops": 1e14, "bytes": 1e12}
SPEC = ModelSpec(family="gemma4", weights="hf://google/gemma-4-31b-it", dtype="bfloat16")


def gpu_point(**changes: Any):
    mesh = MeshShape(1, 2, 1)
    return paper_point(
        **{"spec": SPEC, "slice": find_slice("gpu_2xh100"), "backend": "torch", "mesh": mesh, "attention": "sdpa", **changes}
    )


def made_with(torch: str):
    return lambda _kind: Maker("sources", {"torch": torch})


@pytest.fixture
def trace(tmp_path: Path) -> GpuTrace:
    store = AnswerStore(tmp_path / "answers", shipped=tmp_path / "shipped", now=made_with("2.13.0"))
    return GpuTrace(store, Console(), tmp_path)


def test_it_is_for_the_torch_backend_on_gpus_whose_base_can_be_traced(trace: GpuTrace) -> None:
    assert trace.serves(gpu_point())
    assert not trace.serves(gpu_point(backend="jax"))
    assert not trace.serves(paper_point(spec=SPEC))
    assert not trace.serves(gpu_point(spec=replace(SPEC, quantization="nf4")))
    assert not trace.serves(gpu_point(spec=replace(SPEC, weights="hf://nobody/knows-this")))


def test_steps_price_and_data_are_not_asked_about(tmp_path: Path) -> None:
    config = known_config(SPEC, tmp_path)
    point = gpu_point()
    same = replace(point, steps=7, loss_share=0.1, filling=replace(point.filling, tokens=5.0), slice=find_slice("gpu_2xh100"), batch=16)
    assert trace_question(point, config).digest == trace_question(same, config).digest
    for change in ({"micro": 2}, {"remat": "none"}, {"packed": True}, {"clip": False}, {"length": 4096}, {"batch": 2}, {"dropout": True}):
        assert trace_question(point, config).digest != trace_question(replace(point, **change), config).digest


def test_an_answer_is_kept_and_found_and_said_to_be_stale(trace: GpuTrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def worker(kind: str, questions: Any, _log: Path, _tick: Any):
        asked.append((kind, questions[0]["mesh"]["fsdp"]))
        yield WorkerAnswer(0, VALUE, 3.0, {"torch": "2.13.0"})

    monkeypatch.setattr(asking, "run_compiler_worker", worker)
    point = gpu_point()
    assert trace.find(point) is None
    made = trace.compile(point)
    assert trace.find(point) == made == trace.compile(point)
    assert asked == [("gpu", 2)]
    assert (made.by, made.hbm_bytes, made.seconds, made.extrapolated) == ("torch 2.13.0, fake tensors", 5e10, None, False)
    assert made.warnings == ()
    later = GpuTrace(AnswerStore(tmp_path / "answers", shipped=tmp_path / "shipped", now=made_with("2.14.0")), Console(), tmp_path)
    found = later.find(point)
    assert found is not None
    assert "torch 2.13.0" in found.warnings[0]


@pytest.mark.parametrize(
    ("changes", "gib"),
    [
        ({"batch": 2}, 41.06),
        ({"batch": 2, "packed": True, "length": 8192}, 48.11),
        ({"packed": True, "remat": "dots"}, 70.70),
        ({"packed": True, "mesh": MeshShape(1, 1, 2)}, 37.35),
    ],
    ids=["padded", "long", "dots", "tp"],
)
def test_the_model_is_near_what_a_trace_of_the_31b_step_gave(changes: dict[str, Any], gib: float) -> None:
    """Of one rank of two, torch 2.13.0; what is not said is fsdp, 1 x 3,072, all layers made again."""
    assert training_memory(gpu_point(**changes)).total / 2**30 == pytest.approx(gib, rel=0.06)


def test_the_models_flop_are_near_those_of_a_trace() -> None:
    assert micro_flops(gpu_point(batch=2)) == pytest.approx(6.66e14, rel=0.06)


def test_what_eager_operations_keep_of_a_token_by_hand() -> None:
    sliding = next(work for work in MODEL.layers if work.layer.window)
    inputs = 4 * (5 * 5376 + 8192 + 21504) + 4 * 7 * 64
    norms = 4 * (4 * 5376 + 8192 + 2 * 4096)
    attention, gates = 2 * (4 * 8192 + 3072), 2 * 3 * 21504
    point = gpu_point(remat="none", packed=True)
    assert kept_bytes(point, sliding, "none") == inputs + norms + attention + gates
    assert kept_bytes(replace(point, dropout=True), sliding, "none") == inputs + norms + attention + gates + 5 * 5376 + 8192 + 21504


@pytest.mark.parametrize(
    "lora",
    [
        LoraSpec(rank=64),
        LoraSpec(rank=8, targets=("q", "v")),
        LoraSpec(rank=8, rank_pattern={"q_proj": 4, r"layers\.0\.mlp\.gate_proj": 2}),
    ],
)
def test_an_adapter_is_asked_about_as_it_is(lora: LoraSpec) -> None:
    modules = lora_modules(lora, GEMMA)
    fields = lora_fields(planned_model(GEMMA, modules))
    assert fields is not None
    again = lora_modules(LoraSpec(**{**fields, "targets": tuple(fields["targets"])}), GEMMA)
    assert {one.target.hf: one.rank for one in again} == {one.target.hf: one.rank for one in modules}


def test_an_adapter_that_targets_cannot_say_is_not_asked_about() -> None:
    modules = lora_modules(LoraSpec(rank=8), GEMMA)
    assert lora_fields(planned_model(GEMMA, modules[1:])) is None
    assert lora_fields(planned_model(GEMMA, ())) == {"rank": 0, "targets": ["q", "k", "v", "o", "gate", "up", "down"], "rank_pattern": {}}
