"""Sharded checkpoints and adapters with random values, written as Hugging Face and PEFT write them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from crossmesh.adapters.initial import PEFT_PREFIX

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def write_checkpoint(folder: Path, shards: Sequence[Mapping[str, Any]], config: Mapping[str, Any] | None = None) -> None:
    """Write arrays by name as shards with an index (one shard: without), and the small files of a model."""
    folder.mkdir(parents=True)
    names = ["model.safetensors"] if len(shards) == 1 else [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    weight_map: dict[str, str] = {}
    for name, arrays in zip(names, shards, strict=True):
        save_file(dict(arrays), folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(arrays, name)
    if len(shards) > 1:
        size = sum(array.nbytes for arrays in shards for array in arrays.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **(config or {})}))
    for small in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / small).write_text(json.dumps({"file": small}))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "LICENSE").write_text("a licence")


def write_peft(folder: Path, pairs: Mapping[str, tuple[Any, Any]], metadata: Mapping[str, str] | None = None, **config: Any) -> None:
    """Write A and B of each module, and a config with `config` over PEFT's plain LoRA."""
    folder.mkdir(parents=True)
    arrays: dict[str, Any] = {}
    for module, (a, b) in pairs.items():
        arrays[f"{PEFT_PREFIX}{module}.lora_A.weight"] = a
        arrays[f"{PEFT_PREFIX}{module}.lora_B.weight"] = b
    save_file(arrays, folder / "adapter_model.safetensors", metadata={"format": "pt", **(metadata or {})})
    plain = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "target_modules": sorted(pairs)}
    (folder / "adapter_config.json").write_text(json.dumps(plain | config))


def random_array(random: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32, scale: float = 1.0) -> Any:
    """Normal values."""
    return (random.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(dtype)
