"""The torch side of `check=exchange`: logits of transformers with PEFT, of the merged model, and what vLLM's tokens are worth there."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel

from crossmesh.config.training import default_torch_kernel
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.torch.hf_torch import DTYPES, hidden_states, load_base, logits, model_inputs
from crossmesh.verify.exchange.figures import FloatArray, IntArray, greedy_gap
from crossmesh.verify.measure import Progress
from crossmesh.verify.process import Request, answer_measurement, by_model


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Compute each of `models` (folders by name) in `dtype` and return the gaps of vLLM's tokens by name.

    A model's folder `files` holds `tokens.npy` [B, T] and vLLM's sequences `vllm_{base,served,plain}.npy`; this writes
    `torch_{base,adapted,merged}.npy` [B, T, vocab] there.
    """
    return by_model(request, progress, "torch", lambda paths: _measure(paths, request["dtype"]))


def _measure(paths: dict[str, str], dtype: str) -> dict[str, Any]:
    files, architecture = Path(paths["files"]), read_architecture(Path(paths["model"]))
    tokens: IntArray = np.load(files / "tokens.npy")
    model = load_base(Path(paths["model"]), dtype)
    np.save(files / "torch_base.npy", _logits(model, architecture, tokens, dtype))
    gaps = {"base": _gap(model, architecture, files / "vllm_base.npy", tokens.shape[1], dtype)}
    PeftModel.from_pretrained(model, paths["adapter"]).eval()  # It changes the modules of `model` in place.
    np.save(files / "torch_adapted.npy", _logits(model, architecture, tokens, dtype))
    for form in ("served", "plain"):
        gaps[form] = _gap(model, architecture, files / f"vllm_{form}.npy", tokens.shape[1], dtype)
    del model
    merged = load_base(Path(paths["merged"]), dtype)
    np.save(files / "torch_merged.npy", _logits(merged, architecture, tokens, dtype))
    return {"gaps": {form: gap for form, gap in gaps.items() if gap is not None}}


def _gap(model: Any, architecture: Architecture, file: Path, first: int, dtype: str) -> float | None:
    """`greedy_gap` of the sequences in `file`; None where that engine made none."""
    if not file.is_file():
        return None
    sequences: IntArray = np.load(file)
    return max(greedy_gap(_logits(model, architecture, row[None], dtype), row[None], first) for row in sequences)


def _logits(model: Any, architecture: Architecture, tokens: IntArray, dtype: str) -> FloatArray:
    positions = np.ascontiguousarray(np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape))
    with torch.inference_mode():
        kernel = default_torch_kernel(architecture.family)
        inputs = model_inputs(kernel, architecture, DTYPES[dtype], tokens, positions, np.ones_like(tokens), "cpu")
        result: FloatArray = logits(model, architecture, hidden_states(model, architecture, inputs)).numpy()
    return result


if __name__ == "__main__":
    answer_measurement(main)
