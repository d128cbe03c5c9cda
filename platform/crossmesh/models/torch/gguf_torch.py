"""GGUF files to Hugging Face folders: dequantized once to float32, with the tokenizer the model was trained with.

Runs where torch and transformers are. Only architectures whose tokenizer is known to come out right are accepted.
"""

from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from crossmesh.compat.transformers_models import forget_quantization
from crossmesh.errors import InputError, require_choice


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model in `gguf` as config, float32 safetensors, tokenizer and chat template into the existing `folder`.

    Raises `InputError` for a file that is no GGUF, has no chat template, or whose architecture or tokenizer is not known here.
    """
    pre = _check(gguf)
    parent, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(parent, gguf_file=name)
    # transformers 5.19 gives every byte-level GGUF tokenizer the GPT-2 split and ignores `tokenizer.ggml.pre`.
    tokenizer.backend_tokenizer.pre_tokenizer = _PRE_TOKENIZERS[pre]()
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(parent, gguf_file=name, dtype=torch.float32)
    forget_quantization(model)
    model.save_pretrained(folder, safe_serialization=True)


def _digits_then_bytes() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _bytes() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


_PRE_TOKENIZERS = {"smollm": _digits_then_bytes, "gpt-2": _bytes}
"""How text is split before merging, by `tokenizer.ggml.pre`; as llama.cpp's `llm_tokenizer_bpe` does it."""


def _check(gguf: Path) -> str:
    try:
        reader = GGUFReader(str(gguf))
    except (ValueError, OSError, IndexError) as error:
        raise InputError(f"{gguf.name} is not a readable GGUF file: {error}. Give a complete .gguf file.") from error
    fields = {name: field.contents() for name, field in reader.fields.items() if name in _CHECKED}
    require_choice(f"{gguf.name}: general.architecture", str(fields.get("general.architecture")), ("llama",))
    require_choice(f"{gguf.name}: tokenizer.ggml.model", str(fields.get("tokenizer.ggml.model")), ("gpt2",))
    if not fields.get("tokenizer.chat_template"):
        raise InputError(f"{gguf.name} has no chat template (tokenizer.chat_template). Give an instruction-tuned model.")
    pre = str(fields.get("tokenizer.ggml.pre"))
    require_choice(f"{gguf.name}: tokenizer.ggml.pre", pre, _PRE_TOKENIZERS)
    return pre


_CHECKED = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template")
