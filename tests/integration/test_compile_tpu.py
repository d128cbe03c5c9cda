"""The step compiled for TPU slices by libtpu, with tiny models: what it says against what is known otherwise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.training import LoraSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.compilers.compiled import TpuCompiler, compile_question
from crossmesh.plan.model import planned_model
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.store.store import AnswerStore
from crossmesh.plan.training.memory import training_memory
from plan_points import GEMMA, paper_point

pytestmark = [pytest.mark.integration, pytest.mark.full]


@pytest.fixture
def compiler(tmp_path: Path) -> TpuCompiler:
    made = TpuCompiler(AnswerStore(tmp_path, shipped=tmp_path / "none"), Console())
    if made.missing():
        pytest.skip(made.missing())
    return made


def tiny(name: str, layers: int, **changes: Any) -> TrainingPoint:
    """The last layers of a tiny model, its first one over and over where it has fewer."""
    architecture = parse_architecture(architecture_config(name), name)
    own = architecture.layers
    architecture = replace(architecture, layers=own[-layers:] if layers <= len(own) else own[:1] * layers)
    made = {
        "model": planned_model(architecture, lora_modules(LoraSpec(rank=8), architecture)),
        "spec": ModelSpec(family=architecture.family, dtype="bfloat16"),
        "length": 256,
        "micro": 1,
        "batch": 16,
    }
    return paper_point(**made | changes)


@pytest.mark.parametrize(
    ("name", "slice_", "mesh", "attention"),
    [
        ("tiny_llama", "tpu_v6e_8", MeshShape(1, 4, 2), "splash"),
        ("tiny_gemma4", "tpu_v5e_8", MeshShape(2, 2, 2), "plain"),
    ],
)
def test_arguments_lie_as_the_table_of_placements_says(
    compiler: TpuCompiler, name: str, slice_: str, mesh: MeshShape, attention: str
) -> None:
    point = tiny(name, 2, slice=find_slice(slice_), mesh=mesh, attention=attention)
    found = compiler.compile(point, whole=True)
    planned = training_memory(point)
    assert found.memory["weights"] == pytest.approx(planned.weights, rel=1e-3)
    assert found.memory["adapter"] == pytest.approx(planned.adapter, rel=1e-3)
    assert found.memory["optimizer"] == pytest.approx(planned.optimizer, rel=1e-3)
    assert found.hbm_bytes == pytest.approx(sum(found.memory.values()))
    assert found.memory["padding"] >= 0
    assert found.flops
    assert found.seconds
    assert not found.warnings
    assert compiler.find(point) == found


def test_four_layers_say_what_six_need(compiler: TpuCompiler) -> None:
    point = tiny("tiny_llama", 6, mesh=MeshShape(1, 1, 4))
    small, whole = compiler.compile(point), compiler.compile(point, whole=True)
    assert small.extrapolated
    assert small.hbm_bytes == pytest.approx(whole.hbm_bytes, rel=0.03)
    assert small.flops == pytest.approx(whole.flops, rel=0.03)
    assert small.bytes == pytest.approx(whole.bytes, rel=0.03)
    assert small.seconds == pytest.approx(whole.seconds, rel=0.05)


def test_the_attention_kernel_has_room_for_wide_heads(compiler: TpuCompiler) -> None:
    """Gemma 4's global layers have heads of 512: blocks of 1,024 need more vector memory than XLA gives a kernel."""
    layer = replace(GEMMA.layers[5], heads=4, kv_heads=1)
    architecture = replace(parse_architecture(architecture_config("tiny_gemma4"), "tiny_gemma4"), layers=(layer,), heads=4)
    model = planned_model(architecture, lora_modules(LoraSpec(rank=8), architecture))
    assert layer.head_dim == 512
    assert compiler.compile(tiny("tiny_gemma4", 1, model=model, mesh=MeshShape(1, 4, 1), length=3072, attention="splash")).flops


def test_a_step_that_needs_more_than_the_chip_has_is_an_answer(compiler: TpuCompiler) -> None:
    point = tiny("tiny_llama", 1, slice=find_slice("tpu_v5e_8"), mesh=MeshShape(1, 4, 2), remat="none", micro=64, length=8192)
    found = compiler.compile(point, whole=True)
    assert found.hbm_bytes > 16 * 2**30
    assert (found.flops, found.seconds) == (None, None)
    assert compile_question(point).fields["topology"] == "v5e:2x4"
