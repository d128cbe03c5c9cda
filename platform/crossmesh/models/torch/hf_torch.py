"""Hugging Face models in torch: empty, to be filled shard by shard; whole, as a reference; their hidden states and logits.

Only the text decoder is used. Nothing here trains; LoRA, sharding and the loss are the torch backend's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from crossmesh.config.training import default_torch_kernel
from crossmesh.errors import InputError, reading
from crossmesh.models.architecture import Architecture, Weight
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.quantization import kept_modules
from crossmesh.models.torch.attention_torch import IMPLEMENTATIONS, IntArray, attention_inputs, flattened
from crossmesh.models.weights.model_files import model_alone, tensor_files
from crossmesh.models.weights.spelling import locate

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class ModelInputs:
    """What the decoder is called with."""

    tokens: Tensor
    """[B, T] token ids."""
    arguments: Mapping[str, Any]
    """Masks and positions for the decoder's attention kernel."""


def empty_base(folder: Path, architecture: Architecture, dtype: torch.dtype, kernel: str) -> Any:
    """The text model of a local folder without memory for its parameters (device `meta`); buffers are real. Frozen, evaluating.

    No code of the folder is run. A model that ties its output to its embedding has no `lm_head`; parts for images and sound are left out.
    """
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with init_empty_weights(include_buffers=False), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=IMPLEMENTATIONS[kernel], trust_remote_code=False)
    _keep_text(model, architecture)
    return model.requires_grad_(False).eval()


def quantized_base(folder: Path, architecture: Architecture, dtype: torch.dtype, kernel: str, device: str) -> Any:
    """The text model with its projections in 4-bit NF4 (bitsandbytes), whole on one GPU, frozen; the rest is kept in `dtype`."""
    from transformers import BitsAndBytesConfig

    kept = list(kept_modules(architecture))
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=kept
    )
    with model_alone(folder) as files:
        model = AutoModelForCausalLM.from_pretrained(
            files,
            dtype=dtype,
            attn_implementation=IMPLEMENTATIONS[kernel],
            quantization_config=quantization,
            device_map={"": device},
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    _keep_text(model, architecture)
    return model.requires_grad_(False).eval()


def _keep_text(model: Any, architecture: Architecture) -> None:
    """Drop what the text decoder does not use."""
    path = architecture.prefix.rstrip(".").split(".")
    for depth in range(1, len(path)):
        parent = model.get_submodule(".".join(path[:depth]))
        for name, _ in list(parent.named_children()):
            if name != path[depth]:
                setattr(parent, name, None)
    if architecture.tied:
        model.lm_head = None


def in_pieces(weight: Weight, target: Tensor, slices: Slices) -> dict[str, tuple[Tensor, Slices]]:
    """What `fill` needs for `target`, the part `slices` of a stack of experts that the checkpoint holds in pieces.

    Only the first axis, which counts experts, may be cut.
    """
    per_expert, whole = len(weight.pieces) // weight.hf_shape[0], (slice(None), slice(None))
    width = weight.hf_shape[1] // per_expert
    return {
        weight.pieces[expert * per_expert + piece]: (target[row, piece * width : (piece + 1) * width], whole)
        for row, expert in enumerate(range(*slices[0].indices(weight.hf_shape[0])))
        for piece in range(per_expert)
    }


def fill(targets: Mapping[str, tuple[Tensor, Slices]], folder: Path) -> None:
    """Copy tensors of a model folder into `targets`: by checkpoint name, the part of the tensor that belongs there.

    Only those parts are read. Raises `InputError` for a tensor that is missing or has another shape than the config says.
    """
    missing = set(targets)
    for file in tensor_files(folder):
        with reading(file, "a complete safetensors file"), safe_open(str(file), framework="pt") as stored, torch.no_grad():
            for name, spelled in locate(missing, set(stored.keys())).items():
                target, slices = targets[name]
                if target.numel():
                    part = stored.get_slice(spelled)[slices]
                    if part.shape != target.shape:
                        raise InputError(
                            f"{file}: {spelled} has shape {stored.get_slice(spelled).get_shape()}, config.json says otherwise."
                        )
                    target.copy_(part)
                missing.discard(name)
    if missing:
        raise InputError(f"{folder} lacks {len(missing)} tensors of its config.json, e.g. {min(missing)}. Give a complete model folder.")


def load_base(folder: Path, dtype: str, device: str = "cpu") -> Any:
    """Load the causal language model of a local folder by transformers' own means, whole, frozen, in evaluation mode.

    Only safetensors are read and no code of the folder is run. Returns a transformers `PreTrainedModel` that computes with SDPA, or
    eagerly where scores are capped, which SDPA does not do.
    """
    kernel = IMPLEMENTATIONS[default_torch_kernel(read_architecture(folder).family)]
    with model_alone(folder) as files:
        model = AutoModelForCausalLM.from_pretrained(
            files, dtype=DTYPES[dtype], attn_implementation=kernel, use_safetensors=True, local_files_only=True, trust_remote_code=False
        )
    return model.requires_grad_(False).eval().to(device)


def model_inputs(
    kernel: str, architecture: Architecture, dtype: torch.dtype, tokens: IntArray, positions: IntArray, segment_ids: IntArray, device: str
) -> ModelInputs:
    """Arrays [B, T] as inputs of a decoder that computes with `kernel` in `dtype`."""
    shape = (1, -1) if flattened(kernel) else tokens.shape
    placed = torch.from_numpy(tokens).to(device, torch.int64).reshape(shape)
    return ModelInputs(placed, attention_inputs(kernel, architecture, dtype, positions, segment_ids, device))


def hidden_states(model: Any, architecture: Architecture, inputs: ModelInputs) -> Tensor:
    """The decoder's normed output [B, T, hidden] in the model's dtype, times what the architecture multiplies logits by."""
    decoder = model.get_submodule(architecture.prefix.rstrip("."))
    output: Tensor = decoder(input_ids=inputs.tokens, use_cache=False, **inputs.arguments).last_hidden_state
    return output if architecture.multipliers.logits == 1 else output * architecture.multipliers.logits


def output_weight(model: Any, architecture: Architecture) -> Tensor:
    """The matrix [vocab, hidden] that makes logits of hidden states."""
    weight: Tensor = model.get_submodule(f"{architecture.prefix}embed_tokens" if architecture.tied else "lm_head").weight
    return weight


def logits(model: Any, architecture: Architecture, hidden: Tensor) -> Tensor:
    """Float32 logits [..., vocab] of hidden states [..., hidden]; the soft cap is applied in float32."""
    raw = (hidden @ output_weight(model, architecture).T).float()
    cap = architecture.logit_softcap
    return torch.tanh(raw / cap) * cap if cap else raw


def reference_logits(folder: Path, tokens: IntArray, positions: IntArray, segment_ids: IntArray) -> npt.NDArray[np.float32]:
    """Float32 logits [B, T, vocab] of the base model in `folder`: what another backend's forward pass is held against."""
    architecture = read_architecture(folder)
    model = load_base(folder, "float32")
    whole, places, rows = (np.ascontiguousarray(array, np.int32) for array in (tokens, positions, segment_ids))
    with torch.inference_mode():
        inputs = model_inputs(default_torch_kernel(architecture.family), architecture, torch.float32, whole, places, rows, "cpu")
        result: npt.NDArray[np.float32] = logits(model, architecture, hidden_states(model, architecture, inputs)).numpy()
    return result
