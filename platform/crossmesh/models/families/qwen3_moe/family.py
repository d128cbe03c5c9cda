"""Qwen 3 with experts in place of the feed-forward network of every layer; attention as the dense Qwen 3."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture, ConfigKeys, Experts, Family, Json, Weight
from crossmesh.models.families.config_json import read_size
from crossmesh.models.families.config_keys import DENSE, NONE, ROPES, SIZES, words
from crossmesh.models.families.dense import dense_outer, dense_projections, read_dense
from crossmesh.models.families.qwen3.family import qwen3_norms


def _read(config: Json, origin: str) -> Architecture:
    # Newer transformers call it num_local_experts.
    config = {"num_experts": config.get("num_local_experts"), **config}
    count, used, ffn = (read_size(config, name, origin) for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"))
    if used > count:
        raise InputError(f"{origin}: num_experts_per_tok={used}, but there are num_experts={count}. Allowed: up to {count}.")
    # transformers has one window for all layers of this family, or none.
    model = read_dense("qwen3_moe", config, origin, positions=32_768, head_dim=0)
    return replace(model, ffn=0, experts=Experts(count, used, ffn, bool(config.get("norm_topk_prob", False))))


def _projections(architecture: Architecture, index: int) -> dict[str, Weight]:
    return {name: weight for name, weight in dense_projections(architecture, index).items() if name in ("q", "k", "v", "o")}


def _others(architecture: Architecture, index: int) -> Iterator[Weight]:
    yield from qwen3_norms(architecture, index)
    if architecture.experts is None:
        return
    count, ffn, hidden = architecture.experts.count, architecture.experts.ffn, architecture.hidden
    hf, path = f"{architecture.layer_prefix(index)}mlp", ("layers", index, "mlp")
    names = {name: [f"{hf}.experts.{one}.{name}_proj.weight" for one in range(count)] for name in ("gate", "up", "down")}
    yield Weight(f"{hf}.gate", "weight", path, "router", (count,), (hidden,), (1, 0), ("experts", "hidden"))
    yield Weight(
        f"{hf}.experts",
        "gate_up_proj",
        path,
        "gate_up",
        (count, 2, ffn, hidden),
        axes=(1, 0, 3, 2),
        dims=("experts", "pair", "ffn", "hidden"),
        stored=(count, 2 * ffn, hidden),
        pieces=tuple(name for pair in zip(names["gate"], names["up"], strict=True) for name in pair),
    )
    yield Weight(
        f"{hf}.experts",
        "down_proj",
        path,
        "down",
        (count, hidden, ffn),
        axes=(0, 2, 1),
        dims=("experts", "hidden", "ffn"),
        pieces=tuple(names["down"]),
    )


FAMILY = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    read=_read,
    projections=_projections,
    others=_others,
    outer=dense_outer,
    keys=ConfigKeys(
        SIZES
        | ROPES
        | words("head_dim num_experts num_local_experts num_experts_per_tok moe_intermediate_size norm_topk_prob")
        | words("sliding_window max_window_layers"),  # Of windows, which are off.
        {**DENSE, "use_sliding_window": NONE, "decoder_sparse_step": (1, None), "mlp_only_layers": (None, [])},
    ),
    jax="crossmesh.models.families.qwen3.model_jax:make_qwen3",
    folder=Path(__file__).parent,
)
