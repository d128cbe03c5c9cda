"""transformers: how a model remembers where it came from. Imports nothing of it."""

from typing import Any

_QUANTIZED = ("is_quantized", "_is_quantized", "quantization_method", "hf_quantizer", "quantization_config")
_NAMES = ("_name_or_path", "_model_name_or_path")


def forget_quantization(model: Any) -> None:
    """Have `model` forget that its weights came quantized: they are plain float32 now, and loaders would otherwise look for a GGUF."""
    for owner in (model, model.config):
        for name in _QUANTIZED:
            if name in vars(owner):
                delattr(owner, name)
    for name in _NAMES:
        if hasattr(model.config, name):
            setattr(model.config, name, "")
