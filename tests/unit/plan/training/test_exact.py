"""Exact rules: what cannot work is named before anything is computed, and ten thousand points take seconds."""

import time
from dataclasses import replace
from typing import Any

import pytest

from crossmesh.config.training import ModelSpec
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.model import planned_model
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.serving.step import replicated_bytes
from crossmesh.plan.training.exact import Replication, _placed, broken_rules, broken_serving_rules, replications
from plan_points import paper_engine, paper_point


def test_the_papers_mesh_breaks_no_rule() -> None:
    assert broken_rules(paper_point()) == ()


@pytest.mark.parametrize(
    ("backend", "tensor"),
    [("jax", "layers.5.attn.k_einsum.w axis 0 has size 4"), ("torch", "self_attn.k_proj.weight has 4 key/value heads")],
)
def test_training_on_eight_tp_ranks_names_the_global_k_projection(backend: str, tensor: str) -> None:
    name, kernel = ("tpu_v6e_8", "splash") if backend == "jax" else ("gpu_8xb200", "sdpa")
    point = paper_point(slice=find_slice(name), mesh=MeshShape(1, 1, 8), backend=backend, attention=kernel)
    (reason,) = broken_rules(point)
    assert tensor in reason
    assert "Allowed: tp one of 1, 2, 4" in reason


def test_each_rule_says_both_numbers() -> None:
    (devices,) = broken_rules(paper_point(mesh=MeshShape(1, 2, 4)))
    assert "8 places, tpu_v5p_8 has 4 chips" in devices
    (batch,) = broken_rules(paper_point(mesh=MeshShape(1, 4, 1), micro=4))
    assert "batch.size=8 is not a multiple of batch.micro=4 on each of the mesh's 4 data-parallel ranks" in batch
    (context,) = broken_rules(paper_point(length=300_000))
    assert "300000 tokens is longer than the model's 262144 positions" in context
    float32 = ModelSpec(family="gemma4", dtype="float32")
    (precision,) = broken_rules(paper_point(spec=float32, slice=find_slice("gpu_8xb200"), mesh=MeshShape(1, 8, 1), backend="torch"))
    assert "b200 has no published peak for model.dtype=float32" in precision


def test_float32_on_a_tpu_is_six_products_in_bfloat16() -> None:
    point = paper_point(spec=ModelSpec(family="gemma4", dtype="float32"))
    assert broken_rules(point) == ()
    assert point.peak == pytest.approx(459e12 / 6)


def test_serving_on_eight_ranks_is_accepted_and_its_copies_are_counted() -> None:
    engine = paper_engine()
    assert broken_serving_rules(engine) == ()
    assert replications(engine) == (Replication(5, 4, 2),)
    # 10 global layers, one shared K projection of 5,376 x 2,048: 512 columns a rank where an even share has 256, in bfloat16.
    assert replicated_bytes(engine) == 10 * 5376 * (512 - 256) * 2


def test_serving_refuses_what_neither_divides_nor_is_a_multiple() -> None:
    reasons = broken_serving_rules(paper_engine(tp=3))
    assert any("32 attention heads, which serve.tp=3 does not divide" in reason for reason in reasons)
    assert any("16 key/value heads; serve.tp=3 neither divides them nor is a multiple" in reason for reason in reasons)
    assert "is more than the 8 chips" in broken_serving_rules(paper_engine(tp=16))[0]
    assert "16640 tokens, more than serve.max_model_len=16384" in broken_serving_rules(paper_engine(prompt=16128))[0]


def test_an_engine_on_several_hosts_has_all_of_their_chips_or_a_host_for_each_stage() -> None:
    four_hosts = find_slice("tpu_v6e_16")
    assert "does not fill the 16 chips of 4 hosts" in broken_serving_rules(paper_engine(slice=four_hosts, tp=8))[0]
    assert "does not fill the 16 chips of 4 hosts" in broken_serving_rules(paper_engine(slice=four_hosts, tp=1))[0]
    for tp in (4, 16):
        assert not [reason for reason in broken_serving_rules(paper_engine(slice=four_hosts, tp=tp)) if "hosts" in reason]


def test_ten_thousand_points_take_under_two_seconds() -> None:
    base = paper_point(slice=find_slice("tpu_v6e_8"))
    meshes = [MeshShape(8 // (fsdp * tp), fsdp, tp) for fsdp in (1, 2, 4, 8) for tp in (1, 2, 4, 8) if 8 % (fsdp * tp) == 0]
    points = [replace(base, mesh=meshes[number % len(meshes)], micro=1 + number % 2, length=1024 + number) for number in range(10_000)]
    start = time.process_time()
    fitting = sum(not broken_rules(point) for point in points)
    assert time.process_time() - start < 2
    assert 0 < fitting < 10_000


def test_what_the_jax_model_does_not_compute_is_refused_by_the_plan() -> None:
    architecture = parse_architecture(architecture_config("tiny_gemma4") | {"rms_norm_eps": 1e-3}, "x")
    model = planned_model(architecture, ())
    assert "rms_norm_eps=0.001" in _placed(model, MeshShape(1, 1, 1), "jax", ModelSpec(family="gemma4"))
    assert not _placed(model, MeshShape(1, 1, 1), "torch", ModelSpec(family="gemma4"))


def on_gpus(**changes: Any) -> TrainingPoint:
    return paper_point(slice=find_slice("gpu_2xh100"), mesh=MeshShape(1, 2, 1), backend="torch", **changes)


def test_what_the_worker_refuses_is_no_plan() -> None:
    assert broken_rules(on_gpus(attention="sdpa")) == ()
    (absent,) = broken_rules(on_gpus(attention="flash"))
    assert "flash_attn is not installed" in absent
    (sharded,) = broken_rules(on_gpus(attention="sdpa", spec=ModelSpec(family="gemma4", dtype="bfloat16", quantization="nf4")))
    assert "bitsandbytes' weights are whole on each GPU" in sharded
    (on_tpu,) = broken_rules(paper_point(backend="torch"))
    assert "does not exist on Tpu" in on_tpu


def test_heads_of_512_are_too_wide_for_flash_wherever_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CROSSMESH_PYTHON_TRAIN_TORCH", "/own/python")
    (wide,) = broken_rules(on_gpus(attention="flash"))
    assert "512 wide" in wide
