"""The model that the torch backend trains: base, LoRA layers and loss head as one module, divided over ranks and filled with values.

A model is built without memory, adapted and divided, and only then filled: every rank reads its own parts of the safetensors files.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from crossmesh.adapters.init_adapter import adapted_modules, first_values
from crossmesh.adapters.initial import PEFT_PREFIX, FloatArray
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.compat.torch_core import fused_attention
from crossmesh.models.architecture import Architecture
from crossmesh.models.lora import LoraModule, largest_rank, targets_of
from crossmesh.models.targets import all_weights
from crossmesh.models.torch.hf_torch import (
    DTYPES,
    ModelInputs,
    Slices,
    empty_base,
    fill,
    hidden_states,
    in_pieces,
    output_weight,
    quantized_base,
)
from crossmesh.models.torch.lora_masks_torch import LoraDropout, LoraMasks
from crossmesh.objectives.objective import LOSS, Objective, TokenLosses, make_objective
from crossmesh.train.backend import TrainingSetup, loss_rows
from crossmesh.train.compile_torch import compile_layers
from crossmesh.train.loss_torch import LossHead, token_sums
from crossmesh.train.ranks_torch import Part, Ranks
from crossmesh.train.sharding_torch import apply_fsdp, apply_tensor_parallel, local, tp_axis

_MATRIX_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    *fused_attention(),
}
"""What `remat=dots` keeps: results of matrix products, those of fused attention included."""
_PRODUCTS_OF_TWO = {torch.ops.aten.mm.default: 0, torch.ops.aten.addmm.default: 1}
"""Where plain products have their first factor."""


@dataclass(frozen=True)
class Trained:
    """A parameter that is trained."""

    name: str
    """By which it is exported: PEFT's name of a LoRA array, or the checkpoint's of a base weight."""
    parameter: Tensor
    """What the model computes with; a `DTensor` where it is divided."""
    part: Part
    """What of it is here."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return tuple(self.parameter.shape)


@dataclass(frozen=True)
class MicroBatch:
    """This rank's sequences of a micro-batch."""

    inputs: ModelInputs
    targets: Tensor
    """[N] tokens that carry loss."""
    positions: Tensor
    """[N] flat position that each of `targets` is predicted from: the one before it."""
    arrays: Mapping[str, Any]
    """Those of the batch by name, [sequences, length], on the host."""


class LossModel(nn.Module):
    """Decoder and objective: from tokens to summed losses. One module, so that FSDP gathers the output weight for both."""

    def __init__(self, base: Any, architecture: Architecture, ranks: Ranks, objective: Objective, masks: LoraMasks | None = None) -> None:
        super().__init__()
        self.objective = objective
        self.masks = masks
        """Of LoRA dropout, to be started before every micro-batch; None where there is none."""
        self.base, self.architecture, self.group = base, architecture, ranks.group("tp")
        self.rows = loss_rows(on_cpu=ranks.device == "cpu")

    def forward(self, micro: MicroBatch) -> dict[str, Tensor]:
        """What the objective sums over `micro`, scalars by name."""
        sums = self.objective.loss_torch(ForwardTorch(self, micro), micro.arrays)
        return {name: sums[name] for name in (LOSS, *self.objective.metrics)}


@dataclass(frozen=True)
class ForwardTorch:
    """`Forward` on torch."""

    model: LossModel
    micro: MicroBatch

    def hidden(self) -> Tensor:
        """As `Forward`."""
        return hidden_states(self.model.base, self.model.architecture, self.micro.inputs)

    def output_weight(self) -> Tensor:
        """As `Forward`."""
        return local(output_weight(self.model.base, self.model.architecture))

    def token_sums(self, token_losses: TokenLosses) -> dict[str, Tensor]:
        """As `Forward`."""
        hidden = self.hidden()
        chosen = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.micro.positions)
        head = LossHead(self.model.architecture.logit_softcap, self.model.rows, token_losses, self.model.group)
        return token_sums(head, chosen, self.output_weight(), self.micro.targets)


def build(setup: TrainingSetup, architecture: Architecture, ranks: Ranks) -> tuple[LossModel, dict[str, Trained]]:
    """Return the model on this rank's device, holding base weights and the LoRA values to start from, and what of it is trained."""
    model, axes = assemble(setup, architecture, ranks)
    held = allocate(model, axes, ranks)
    trained = trained_of(held)
    _fill_base(setup, architecture, model.base, {} if setup.model.quantization != "none" else held)
    modules = adapted_modules(setup.lora, setup.init_adapter, architecture)
    if modules:
        _fill_adapter(first_values(setup.lora, setup.init_adapter, modules), trained)
    return model, trained


def assemble(setup: TrainingSetup, architecture: Architecture, ranks: Ranks) -> tuple[LossModel, dict[str, int | None]]:
    """The adapted model, divided over `ranks`, and by a parameter's name the axis that tp divides.

    Parameters have no memory yet, but those of a quantized base. `plan/compilers/trace_gpu.py` starts from here as well.
    """
    dtype = torch.float32 if setup.lora.full else DTYPES[setup.model.dtype]
    if setup.model.quantization != "none":
        base = quantized_base(setup.model_folder, architecture, dtype, setup.attention, ranks.device)
    else:
        base = empty_base(setup.model_folder, architecture, dtype, setup.attention)
    if setup.lora.full:
        base.requires_grad_(True)
    modules = adapted_modules(setup.lora, setup.init_adapter, architecture)
    masks = None
    if modules:
        _adapt(base, setup, modules)
        masks = _mask(base, setup, modules, on_cpu=ranks.device == "cpu")
    layers = base.get_submodule(f"{architecture.prefix}layers")
    if setup.compile == "layer":
        compile_layers(layers, setup.cache)
    _rematerialize(layers, setup.remat, largest_rank(modules))
    apply_tensor_parallel(base, architecture, ranks)
    axes = {_export_name(name): tp_axis(parameter) for name, parameter in base.named_parameters()}
    model = LossModel(base, architecture, ranks, make_objective(setup.objective), masks)
    apply_fsdp(model, layers, ranks)
    return model, axes


def allocate(model: LossModel, axes: Mapping[str, int | None], ranks: Ranks) -> dict[str, Trained]:
    """Give the parameters of an assembled model memory, which holds nothing yet, and return them by name."""
    _allocate(model, ranks.device)
    return {
        name: Trained(name, parameter, ranks.part(tuple(parameter.shape), axes[name]))
        for name, parameter in ((_export_name(name), parameter) for name, parameter in model.base.named_parameters())
    }


def trained_of(held: Mapping[str, Trained]) -> dict[str, Trained]:
    """Those parameters that are trained, in the order of their names."""
    return {name: one for name, one in sorted(held.items()) if one.parameter.requires_grad}


def _adapt(base: Any, setup: TrainingSetup, modules: tuple[LoraModule, ...]) -> None:
    """Put PEFT's LoRA layers into `base`; float32 whatever the base's precision."""
    settings = AdapterConfig.of(modules, setup.lora.dropout, setup.model.weights).json()
    config = LoraConfig(**{key: value for key, value in settings.items() if key not in ("peft_type", "inference_mode")})
    # A quantized base is there already: then LoRA parameters get memory at once.
    get_peft_model(base, config, autocast_adapter_dtype=True, low_cpu_mem_usage=setup.model.quantization == "none")


def _mask(base: Any, setup: TrainingSetup, modules: tuple[LoraModule, ...], *, on_cpu: bool) -> LoraMasks | None:
    """Put dropout whose masks do not depend on the framework where PEFT put torch's; returns what its masks come from."""
    if not setup.lora.dropout:
        return None
    masks = LoraMasks([module.target.hf for module in modules], setup.lora.seed, on_cpu=on_cpu)
    for target in targets_of(modules):
        dropout = LoraDropout(masks, target.hf, setup.lora.dropout, 0, target.in_features)
        base.get_submodule(target.hf).lora_dropout["default"] = dropout
    return masks


def _export_name(name: str) -> str:
    """Name of a parameter outside: PEFT's for a LoRA array, the checkpoint's for a base weight."""
    if ".lora_" in name:
        return f"{PEFT_PREFIX}{name.replace('.default.weight', '.weight')}"
    return name.replace(".base_layer", "")


def _rematerialize(layers: Any, policy: str, rank: int) -> None:
    """Make the backward pass compute again what `policy` says, layer by layer; inside FSDP, which gathers a layer's weights once for it."""
    if policy == "none":
        return
    arguments: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if policy == "dots":
        arguments["context_fn"] = functools.partial(create_selective_checkpoint_contexts, functools.partial(_keep, rank))
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, **arguments)


def _keep(rank: int, _context: Any, operation: Any, *arguments: Any, **_options: Any) -> CheckpointPolicy:
    """Keep the results of matrix products, but for LoRA's B: wide, nothing's operand, and made again for next to nothing."""
    first = _PRODUCTS_OF_TWO.get(operation)
    cheap = first is not None and arguments[first].shape[-1] <= rank
    return CheckpointPolicy.PREFER_RECOMPUTE if cheap or operation not in _MATRIX_PRODUCTS else CheckpointPolicy.MUST_SAVE


def _allocate(model: nn.Module, device: str) -> None:
    """Give `meta` parameters memory on `device`; buffers, which are real, move there."""
    buffers = [(module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)]
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
    for module, name, buffer in buffers:
        setattr(module, name, buffer.to(device))


def checkpoint_buffers(base: Any, architecture: Architecture) -> dict[str, Tensor]:
    """Buffers of `base` that are tensors of the checkpoint, by name."""
    stored = {weight.hf_name for weight in all_weights(architecture)}
    return {name: buffer for name, buffer in base.named_buffers() if name in stored}


def _fill_base(setup: TrainingSetup, architecture: Architecture, base: Any, held: Mapping[str, Trained]) -> None:
    """Read this rank's parts of the base weights in `held`, and the checkpoint's buffers; nothing where `held` is empty."""
    if held:
        targets: dict[str, tuple[Tensor, Slices]] = {
            name: (buffer, (slice(None),) * buffer.dim()) for name, buffer in checkpoint_buffers(base, architecture).items()
        }
        pieces = {weight.hf_name: weight for weight in all_weights(architecture) if weight.pieces}
        for name, one in held.items():
            if name in pieces:
                targets |= in_pieces(pieces[name], local(one.parameter), one.part.slices)
            elif not name.startswith(PEFT_PREFIX):
                targets[name] = (local(one.parameter), one.part.slices)
        fill(targets, setup.model_folder)


def _fill_adapter(values: Mapping[str, FloatArray], trained: Mapping[str, Trained]) -> None:
    """Copy this rank's parts of the adapter's `values`."""
    if values.keys() != trained.keys():
        raise AssertionError(f"PEFT adapted other modules: {sorted(values.keys() ^ trained.keys())[:4]}")
    with torch.no_grad():
        for name, one in trained.items():
            local(one.parameter).copy_(torch.tensor(values[name][one.part.slices]))  # What was read cannot be written to.
