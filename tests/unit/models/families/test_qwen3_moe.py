"""Qwen 3 with experts: its sizes, its weights in pieces and whole, where they lie, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from crossmesh.config.training import LORA_TARGETS, LoraSpec, ModelSpec
from crossmesh.errors import InputError
from crossmesh.hardware.mesh import MeshShape
from crossmesh.models.architecture import Architecture, Experts
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.placement import place, weight_axes
from crossmesh.models.targets import all_weights, expand_targets, layer_weights, parameter_count
from crossmesh.models.weights.random_weights import architecture_config, write_random
from crossmesh.models.weights.whole import write_model
from crossmesh.plan.model import planned_model

TINY, LARGE = "tiny_qwen3_moe", "qwen3_30b_a3b"


def shipped(name: str, **change: Any) -> Architecture:
    return parse_architecture(architecture_config(name) | change, "config.json")


def test_30b_a3b_has_30_billion_parameters_of_which_a_token_uses_3() -> None:
    model = shipped(LARGE)
    assert (model.experts, model.ffn, model.layers[0].q_dim) == (Experts(128, 8, 768, normalized=True), 0, 4096)
    assert parameter_count(model) / 1e9 == pytest.approx(30.5, abs=0.05)
    used = sum(work.count * work.active for work in planned_model(model, ()).layers) + 2 * model.vocab * model.hidden
    assert used / 1e9 == pytest.approx(3.3, abs=0.06)
    assert {work.ffn for work in planned_model(model, ()).layers} == {8 * 768}


def test_the_same_model_in_the_spelling_of_newer_transformers() -> None:
    config = architecture_config(TINY)
    newer = {("num_local_experts" if key == "num_experts" else key): value for key, value in config.items()}
    assert parse_architecture(newer, "x") == parse_architecture(config, "x")
    published = config | {"router_aux_loss_coef": 0.001, "output_router_logits": False, "max_window_layers": 48}
    assert parse_architecture(published, "x") == parse_architecture(config, "x")
    assert shipped(TINY, norm_topk_prob=False).experts == Experts(8, 2, 64, normalized=False)
    assert parse_architecture({key: value for key, value in config.items() if key != "head_dim"}, "x").layers[0].head_dim == 16


def test_experts_are_one_tensor_here_and_a_matrix_each_in_the_checkpoint() -> None:
    weights = {weight.hf_name: weight for weight in layer_weights(shipped(TINY), 1)}
    fused, down = weights["model.layers.1.mlp.experts.gate_up_proj"], weights["model.layers.1.mlp.experts.down_proj"]
    assert (fused.hf_shape, fused.tunix_shape, down.tunix_shape) == ((8, 128, 128), (2, 8, 128, 64), (8, 64, 128))
    assert [*fused.stored_shapes.items()][:3] == [
        ("model.layers.1.mlp.experts.0.gate_proj.weight", (64, 128)),
        ("model.layers.1.mlp.experts.0.up_proj.weight", (64, 128)),
        ("model.layers.1.mlp.experts.1.gate_proj.weight", (64, 128)),
    ]
    assert down.stored_shapes["model.layers.1.mlp.experts.7.down_proj.weight"] == (128, 64)
    assert weights["model.layers.1.mlp.gate.weight"].stored_shapes == {"model.layers.1.mlp.gate.weight": (8, 128)}


def test_a_whole_model_is_written_in_the_pieces_of_its_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    write_random(f"{TINY}@0", base)
    stored = load_file(base / "model.safetensors")
    assert "model.layers.2.mlp.experts.7.up_proj.weight" in stored
    arrays = {
        weight.hf_name: np.concatenate([stored[name] for name in weight.stored_shapes]).reshape(weight.hf_shape)
        for weight in all_weights(shipped(TINY))
    }
    write_model(tmp_path / "whole", arrays, base, "float32")
    written = load_file(tmp_path / "whole" / "model.safetensors")
    assert written.keys() == stored.keys()
    assert all(np.array_equal(written[name], array) for name, array in stored.items())


def test_lora_is_on_attention_and_experts_lie_as_gemmas_do() -> None:
    model = shipped(LARGE)
    assert {target.name for target in expand_targets(model, LORA_TARGETS)} == {"q", "k", "v", "o"}
    with pytest.raises(InputError, match="names no projection"):
        expand_targets(model, ("gate", "up"))
    axes = {weight.hf_name: weight_axes(weight) for weight in layer_weights(model, 0)}
    assert axes["model.layers.0.mlp.experts.gate_up_proj"] == (None, None, "fsdp", "tp")
    assert axes["model.layers.0.mlp.experts.down_proj"] == (None, "tp", "fsdp")
    assert axes["model.layers.0.mlp.gate.weight"] == ("fsdp", None)
    modules = lora_modules(LoraSpec(rank=8), model)
    place(model, MeshShape(1, 4, 4), "jax", ModelSpec(), modules)
    place(model, MeshShape(1, 8, 1), "torch", ModelSpec(), modules)
    with pytest.raises(InputError, match=r"model.layers.0.mlp.experts.gate_up_proj holds gate and up .* tp=2. Allowed: mesh.tp=1"):
        place(model, MeshShape(1, 4, 2), "torch", ModelSpec(), modules)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"decoder_sparse_step": 2}, r"decoder_sparse_step=2 .*Allowed: 1"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers=\[0\]"),
        ({"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window=True"),
        ({"num_experts_per_tok": 9}, r"num_experts_per_tok=9, but there are num_experts=8"),
        ({"num_experts": 0}, "num_experts"),
        ({"hidden_act": "gelu"}, r"hidden_act='gelu'"),
        ({"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        shipped(TINY, **change)
