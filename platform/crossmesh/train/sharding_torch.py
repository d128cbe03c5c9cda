"""How a transformers model is divided over ranks: tensor parallel by DTensor, then FSDP2 layer by layer.

The arithmetic is that of one device: a column-parallel projection shards its weight and LoRA's B by output and keeps A whole; a
row-parallel one shards weight and A by input and keeps B whole. Embeddings and output weight are divided by vocabulary. LoRA's float32
parameters lie in the same FSDP group as the frozen base: FSDP2 gathers mixed precisions as bytes and reduces only what is trained.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.functional import embedding

from crossmesh.config.training import LORA_TARGETS
from crossmesh.models.architecture import Architecture
from crossmesh.models.placement import row_parallel, torch_axes
from crossmesh.models.targets import expand_targets, layer_weights
from crossmesh.models.torch.lora_masks_torch import LoraDropout
from crossmesh.train.ranks_torch import Ranks, SumOverRanks, UsedByRanks, own_vocabulary


def apply_tensor_parallel(model: Any, architecture: Architecture, ranks: Ranks) -> None:
    """Divide the (meta) parameters of an adapted `model` over the tp axis, and make its modules exchange what that takes."""
    mesh = ranks.along("tp")
    if mesh is None:
        return
    for target in expand_targets(architecture, LORA_TARGETS):
        rows = row_parallel(target.weight)
        style = RowwiseParallel if rows else ColwiseParallel
        module = model.get_submodule(target.hf)
        if not hasattr(module, "base_layer"):
            _divide(module, mesh, style())
            continue
        _divide(module.base_layer, mesh, style())
        _divide(module.lora_A["default"] if rows else module.lora_B["default"], mesh, style())
        dropout = module.lora_dropout["default"]
        if rows and isinstance(dropout, LoraDropout):
            module.lora_dropout["default"] = dropout.part(mesh.get_local_rank(), mesh.size())
    tables = [model.get_submodule(f"{architecture.prefix}embed_tokens")]
    if architecture.per_layer_input:
        tables.append(model.get_submodule(f"{architecture.prefix}embed_tokens_per_layer"))
    norms = [model.get_submodule(name) for name in _norms_over_heads(architecture)]
    for holder in (*tables, *norms) if architecture.tied else (*tables, *norms, model.lm_head):
        weight = distribute_tensor(holder.weight, mesh, [Shard(0)], src_data_rank=None)
        holder.weight = nn.Parameter(weight, requires_grad=holder.weight.requires_grad)
    for table in tables:
        table.forward = functools.partial(_look_up, table, mesh)
    for norm in norms:
        norm.forward = functools.partial(_norm_over_heads, norm, mesh)


def _norms_over_heads(architecture: Architecture) -> list[str]:
    """Modules of norms that span all heads, of which a rank has its own: OLMo 2's of queries and keys."""
    weights = (weight for index in range(len(architecture.layers)) for weight in layer_weights(architecture, index))
    return [weight.hf for weight in weights if not weight.in_shape and weight.hf_param == "weight" and "tp" in torch_axes(weight)]


def _divide(module: nn.Module, mesh: DeviceMesh, style: ParallelStyle) -> None:
    parallelize_module(module, mesh, style, src_data_rank=None)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of `tensor`, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tp_axis(parameter: Tensor) -> int | None:
    """The axis that tp divides; asked before `apply_fsdp`."""
    return parameter.placements[0].dim if isinstance(parameter, DTensor) else None


def _look_up(table: Any, mesh: DeviceMesh, tokens: Tensor) -> Tensor:
    """Embeddings of `tokens` from a table that is divided by vocabulary: every rank has some, the rest are zeros there."""
    weight = local(table.weight)
    index, mask = own_vocabulary(tokens, len(weight), mesh.get_group())
    total: Tensor = SumOverRanks.apply(embedding(index, weight) * mask[..., None], mesh.get_group())
    scale = getattr(table, "embed_scale", None)  # Gemma's embeddings are scaled.
    return total if scale is None else total * scale.to(total.dtype)


def _norm_over_heads(norm: Any, mesh: DeviceMesh, x: Tensor) -> Tensor:
    """Norm of `x` [..., width], this rank's part of the features, over the features of all ranks."""
    wide, group = x.float(), mesh.get_group()
    squares: Tensor = SumOverRanks.apply(wide.square().sum(-1, keepdim=True), group)
    shared: Tensor = UsedByRanks.apply(squares, group)
    scale = torch.rsqrt(shared / (x.shape[-1] * mesh.size()) + norm.variance_epsilon)
    return (local(norm.weight) * (wide * scale)).to(x.dtype)


def apply_fsdp(model: nn.Module, layers: Any, ranks: Ranks) -> None:
    """Divide all parameters of `model` over the fsdp axis: a group for each decoder layer, one for the rest.

    Gradients are summed, not averaged: the loss is already divided by the tokens of the whole batch. Sums over replicas are ours
    (`Ranks.sum_over_replicas`), once a step and of the divided gradients.
    """
    mesh = ranks.along("fsdp")
    if mesh is None:
        return
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def sync_gradients(model: nn.Module, now: bool) -> None:
    """Say whether the next backward pass sums gradients over the fsdp axis, or keeps adding them up here."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)


def drop_gathered(model: nn.Module) -> None:
    """Let go of weights that a forward pass without a backward pass gathered: they would outlive a change of the divided ones."""
    if isinstance(model, FSDPModule):
        model.reshard()


def sum_partial_gradients(parameters: dict[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Complete the gradients of norms of a head over tp: each rank has seen its own heads only (trained in full fine-tuning)."""
    if group is None:
        return
    for name, parameter in parameters.items():
        divided = isinstance(parameter, DTensor) and "tp" in (parameter.device_mesh.mesh_dim_names or ())
        if name.endswith(("q_norm.weight", "k_norm.weight")) and parameter.grad is not None and not divided:
            dist.all_reduce(local(parameter.grad), group=group)
