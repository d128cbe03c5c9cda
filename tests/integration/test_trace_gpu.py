"""The trace of the torch step against what the same step allocates on this CPU, and against sizes that can be said without either."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from crossmesh.config.training import ModelSpec
from crossmesh.errors import InputError
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.targets import all_weights
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.compilers.trace_gpu import trace
from torch_memory import measured_peak

pytestmark = [pytest.mark.integration, pytest.mark.full]
ALL = ["q", "k", "v", "o", "gate", "up", "down"]
ONE = {"dcn": 1, "data": 1, "fsdp": 1, "tp": 1}
GEMMA = parse_architecture(architecture_config("tiny_gemma4"), "tiny_gemma4.json")


def question(**changes: Any) -> dict[str, Any]:
    lora = {"rank": 8, "targets": ALL, "rank_pattern": {}, "dropout": False}
    fields = {"config": architecture_config("tiny_gemma4"), "dtype": "bfloat16", "quantization": "none", "lora": lora, "remat": "none"}
    fields |= {"attention": "sdpa", "mesh": ONE, "micro": 1, "length": 256, "packed": True, "accumulates": False, "clip": False}
    return fields | changes


def full() -> dict[str, Any]:
    return {"lora": {"rank": 0, "targets": ALL, "rank_pattern": {}, "dropout": False}, "remat": "layer"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_model(ModelSpec(family="gemma4", weights="random://tiny_gemma4@0"), tmp_path_factory.mktemp("cache")).path


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="packed"),
        pytest.param({"remat": "layer", "packed": False}, id="remat-layer"),
        pytest.param({"remat": "dots", "accumulates": True, "clip": True}, id="remat-dots-accumulating"),
        pytest.param({"attention": "plain"}, id="plain-attention"),
        pytest.param(full(), id="all-weights"),
    ],
)
def test_the_traced_peak_is_what_the_same_step_allocates(folder: Path, changes: dict[str, Any]) -> None:
    """The bound that was asked for is 10%; what is left is what kernels take for themselves."""
    asked = question(**changes)
    assert trace(asked)["hbm_bytes"] == pytest.approx(measured_peak(asked, folder), rel=0.02)


@pytest.mark.parametrize("mesh", [{**ONE, "fsdp": 2}, {**ONE, "tp": 2}], ids=["fsdp", "tp"])
def test_the_traced_peak_of_a_rank_is_what_that_rank_of_two_allocates(folder: Path, mesh: dict[str, int], tmp_path: Path) -> None:
    asked = question(mesh=mesh, remat="layer")
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"question": asked, "folder": str(folder)}))
    script = Path(__file__).parents[1] / "support" / "torch_memory.py"
    ranks = [subprocess.Popen([sys.executable, str(script), str(job), str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    assert trace(asked)["hbm_bytes"] == pytest.approx(int(job.with_suffix(".peak").read_text()), rel=0.1)


def test_what_a_rank_holds_is_divided_as_the_mesh_says() -> None:
    whole = sum(torch.Size(weight.hf_shape).numel() for weight in all_weights(GEMMA)) * 2
    one, fsdp = trace(question())["memory"], trace(question(mesh={**ONE, "fsdp": 2}))["memory"]
    assert one["weights"] == pytest.approx(whole, rel=0.01)
    assert fsdp["weights"] == pytest.approx(whole / 2, rel=0.01)
    assert fsdp["adapter"] * 2 == one["adapter"]
    assert fsdp["optimizer"] == pytest.approx(2 * fsdp["adapter"])
    assert "gathered" in fsdp
    assert "gathered" not in one


def test_flop_are_those_of_the_products_and_remat_adds_a_forward_pass() -> None:
    """By hand for LoRA: 2 x matrix x tokens forward and as much backward, no gradient of a frozen matrix; LoRA's own three times."""
    tokens, rank = 256, 8
    none, layer = trace(question(packed=False))["flops"], trace(question(packed=False, remat="layer"))["flops"]
    matrices = adapter = attention = 0
    for index, kind in enumerate(GEMMA.layers):
        q, kv, hidden, ffn = kind.q_dim, kind.kv_dim, GEMMA.hidden, GEMMA.ffn_of(index)
        shapes = [(hidden, q), (q, hidden), (hidden, ffn), (hidden, ffn), (ffn, hidden)] + [(hidden, kv)] * (1 if kind.shared_kv else 2)
        matrices += sum(into * out for into, out in shapes)
        adapter += sum(rank * (into + out) for into, out in shapes)
        attention += 2 * 2 * kind.heads * kind.head_dim * tokens**2
    head = 2 * 2 * GEMMA.hidden * GEMMA.vocab * (tokens - 1)
    forward = 2 * (matrices + adapter) * tokens + attention
    backward = 2 * (matrices + 2 * adapter) * tokens + 2.5 * attention
    assert none == pytest.approx(forward + backward + head, rel=0.02)
    assert layer == pytest.approx(2 * forward + backward + head, rel=0.02)


def test_a_base_in_four_bits_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be traced"):
        trace(question(quantization="nf4"))
