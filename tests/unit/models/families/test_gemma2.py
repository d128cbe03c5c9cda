"""Gemma 2: its layers, its caps, and the kernels that leave them out."""

from dataclasses import replace
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, ModelSpec, default_torch_kernel
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.kernels import check_kernel
from crossmesh.models.targets import all_weights, parameter_count
from crossmesh.models.weights.random_weights import architecture_config


def shipped(name: str, **change: Any) -> Architecture:
    return parse_architecture(architecture_config(name) | change, "config.json")


def test_2b_reads_as_published() -> None:
    model = shipped("gemma2_2b")
    assert parameter_count(model) / 1e9 == pytest.approx(2.61, abs=0.01)
    assert (model.attention_softcap, model.logit_softcap, model.query_scalar, model.tied) == (50.0, 30.0, 256, True)
    assert [layer.window for layer in model.layers[:4]] == [4096, 0, 4096, 0]
    assert {layer.rope.theta for layer in model.layers} == {1e4}


def test_caps_that_are_null_are_off_and_left_out_are_the_familys() -> None:
    off = shipped("gemma2_2b", attn_logit_softcapping=None, final_logit_softcapping=None)
    assert (off.attention_softcap, off.logit_softcap) == (0.0, 0.0)
    unsaid = {key: value for key, value in architecture_config("gemma2_2b").items() if "softcapping" not in key}
    assert parse_architecture(unsaid, "x") == shipped("gemma2_2b")


def test_a_gemma2_has_no_norms_of_queries_and_keys() -> None:
    names = {weight.hf_name for weight in all_weights(shipped("tiny_gemma2"))}
    assert not [name for name in names if "q_norm" in name or "k_norm" in name]
    assert "model.layers.3.post_feedforward_layernorm.weight" in names


def test_kernels_that_leave_the_cap_out_are_refused_and_never_chosen() -> None:
    model = shipped("tiny_gemma2")
    with pytest.raises(InputError, match=r"backend.attention=sdpa: this model caps attention scores at 2.*Allowed: plain"):
        check_kernel("sdpa", model, "float32", "cpu", flash=False)
    check_kernel("plain", model, "float32", "cpu", flash=False)
    check_kernel("sdpa", replace(model, attention_softcap=0.0), "float32", "cpu", flash=False)
    assert (default_torch_kernel(model.family), default_torch_kernel(shipped("tiny_llama").family)) == ("plain", "sdpa")
    spec = ExperimentSpec(model=ModelSpec(family="gemma2"), backend=BackendSpec(name="torch"))
    assert spec.attention == "plain"
    assert replace(spec, model=ModelSpec(family="gemma3")).attention == "sdpa"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation='silu'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"sliding_window": None}, "sliding_window=None"),
        ({"attention_bias": True}, "attention_bias"),
    ],
)
def test_what_is_not_computed_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        shipped("tiny_gemma2", **change)
