"""The Hugging Face side of a model under torch: loading, masks for packed rows, hidden states and logits.

transformers' own modules compute; this file only gives them explicit masks and positions and takes their outputs apart, so that
training, probes and tests all run the same forward pass. It knows nothing of adapters or optimizers.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from crossmesh.models.families import Architecture, read_architecture

IntArray = npt.NDArray[np.int32]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_base(folder: Path, dtype: str, device: str = "cpu") -> Any:
    """Load the causal language model of a local folder in `dtype` (`float32` or `bfloat16`), frozen, in evaluation mode.

    Only safetensors are read and no code of the folder is run. Returns a transformers `PreTrainedModel`.
    """
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=_DTYPES[dtype], attn_implementation="sdpa", use_safetensors=True, local_files_only=True, trust_remote_code=False
    )
    return model.requires_grad_(False).eval().to(device)


def attention_masks(segment_ids: Tensor, architecture: Architecture) -> Tensor | dict[str, Tensor]:
    """Boolean masks [B, 1, T, T] from `segment_ids` [B, T], True where a query (third axis) may see a key (fourth).

    A token sees its own row of the sequence up to itself, within the layer's window. Padding sees padding, so that no softmax is
    over nothing; no real token sees it. Models with both attention kinds get one mask for each, by transformers' names for them.
    """
    length = segment_ids.shape[1]
    index = torch.arange(length, device=segment_ids.device)
    distance = index[:, None] - index[None, :]
    causal = (segment_ids[:, None, :, None] == segment_ids[:, None, None, :]) & (distance >= 0)
    windows = {layer.window for layer in architecture.layers if layer.attention == "sliding"}
    if not windows:
        return causal
    return {"full_attention": causal, "sliding_attention": causal & (distance < windows.pop())}


def hidden_states(model: Any, architecture: Architecture, tokens: Tensor, positions: Tensor, segment_ids: Tensor) -> Tensor:
    """The decoder's normed output [B, T, hidden] in the model's dtype, from integer arrays [B, T]."""
    decoder = model.get_submodule(architecture.prefix.rstrip("."))
    mask = attention_masks(segment_ids, architecture)
    output: Tensor = decoder(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
    return output


def logits(model: Any, architecture: Architecture, hidden: Tensor) -> Tensor:
    """Float32 logits [..., vocab] of hidden states [..., hidden]; the soft cap is applied in float32."""
    raw: Tensor = model.get_output_embeddings()(hidden).float()
    cap = architecture.logit_softcap
    return torch.tanh(raw / cap) * cap if cap else raw


def reference_logits(folder: Path, tokens: IntArray, positions: IntArray, segment_ids: IntArray) -> npt.NDArray[np.float32]:
    """Float32 logits [B, T, vocab] of the base model in `folder`: what another backend's forward pass is held against."""
    architecture = read_architecture(folder)
    model = load_base(folder, "float32")
    with torch.inference_mode():
        inputs = [torch.from_numpy(np.asarray(array, np.int64)) for array in (tokens, positions, segment_ids)]
        result: npt.NDArray[np.float32] = logits(model, architecture, hidden_states(model, architecture, *inputs)).numpy()
    return result
