"""A large model cut down for a check: some of its layers at full width, over the tokens of a short text, everything else as it is.

What two frameworks compute of the whole is what they compute of each kind of layer, of the embedding and of the output. A cut holds the
first layer of every kind and the last one, with the real weights, so memory is that of a few layers, however many there are.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy learns bfloat16 from it.)
import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import read_json, write_json
from crossmesh.models.architecture import Architecture, Json, Weight
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.targets import layer_weights, outer_weights
from crossmesh.models.weights.model_files import tensor_files
from crossmesh.models.weights.spelling import locate

CUT_RECIPE = 1
"""Raised whenever the same model gives another cut."""
TOKENS_FILE = "tokens.npy"
_ROWS, _LENGTH, _VOCAB = 2, 64, 512
_WINDOW = 16
"""Tokens that sliding layers of a cut see: fewer than a row has, so that windows count."""
_TEXT = """A shift register moves its bits by one place at every rising edge of the clock. The serial input enters at one end, and what
leaves at the other end is lost. With an enable signal, the register keeps its value while the signal is low. module shift
#(parameter WIDTH = 8) (input clk, input rst, input en, input d, output reg [WIDTH-1:0] q); always @(posedge clk) if (rst) q <= 0;
else if (en) q <= {q[WIDTH-2:0], d}; endmodule The weather was fine on the first day: 21 degrees, no wind, and 3,400 people came
to see the new bridge. "Nobody thought that it would be open this year," said the engineer who had planned it. Reset is
synchronous, and it has priority over enable."""
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def chosen_layers(architecture: Architecture) -> tuple[int, ...]:
    """The first layer of every kind, and the last one."""
    seen: dict[Any, int] = {}
    for index, layer in enumerate(architecture.layers):
        seen.setdefault((replace(layer, kv_from=None), layer.kv_from is not None), index)
    return tuple(sorted({*seen.values(), len(architecture.layers) - 1}))


def cut_config(config: Json, architecture: Architecture, layers: tuple[int, ...], vocab: int) -> dict[str, Any]:
    """The config of the text decoder with only `layers`, a vocabulary of `vocab` and narrow windows."""
    text = config.get("text_config")
    found = {**text, "model_type": f"{config['model_type']}_text"} if isinstance(text, Mapping) else dict(config)
    for key in ("sliding_window_pattern", "_sliding_window_pattern", "max_window_layers", "architectures"):
        found.pop(key, None)
    windowed = [bool(layer.window) for layer in architecture.layers]
    if "layer_types" in found or (any(windowed) and not all(windowed)):
        found["layer_types"] = [f"{'sliding' if architecture.layers[one].window else 'full'}_attention" for one in layers]
    if any(layer.window for layer in architecture.layers):
        found["sliding_window"] = min(_WINDOW, *(layer.window for layer in architecture.layers if layer.window))
    if "per_layer_config" in found:
        own = found["per_layer_config"]
        found["per_layer_config"] = {str(new): own[str(old)] for new, old in enumerate(layers) if str(old) in own}
    if found.get("num_kv_shared_layers"):
        found["num_kv_shared_layers"] = sum(architecture.layers[one].kv_from is not None for one in layers)
    if "vocab_size_per_layer_input" in found or architecture.per_layer_input:
        found["vocab_size_per_layer_input"] = vocab
    return {**found, "num_hidden_layers": len(layers), "vocab_size": vocab, **dict.fromkeys(_TOKENS, 0)}


def text_tokens(folder: Path, vocab: int) -> npt.NDArray[np.int32]:
    """Token ids [B, T] of a text under the model's own tokenizer."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [one for one in tokenizer.encode(_TEXT, add_special_tokens=False).ids if one < vocab]
    if len(ids) < 2 * _LENGTH:
        raise InputError(f"{folder}: the tokenizer makes {len(ids)} tokens of a text of {len(_TEXT)} characters. Give the model's own.")
    return np.asarray([ids[:_LENGTH], ids[-_LENGTH:]], np.int32)


def write_cut(folder: Path, architecture: Architecture, target: Path) -> None:
    """Write the cut of the model in `folder` to `target`: config, weights, and `tokens.npy`, the ids [B, T] that it knows."""
    config: Json = {**read_json(folder / "config.json")}
    layers = chosen_layers(architecture)
    tokens = text_tokens(folder, architecture.vocab)
    own = np.unique(tokens)
    rest = np.setdiff1d(np.arange(min(architecture.vocab, 2 * _VOCAB)), own)[: _VOCAB - len(own)]
    kept = np.sort(np.concatenate([own, rest]))
    small = cut_config(config, architecture, layers, len(kept))
    cut = parse_architecture(small, f"a cut of {folder}")
    arrays = dict(_read(folder, list(_pairs(architecture, cut, layers)), kept, layers))
    save_file(arrays, str(target / "model.safetensors"), metadata={"format": "pt"})
    write_json(target / "config.json", small)
    np.save(target / TOKENS_FILE, np.searchsorted(kept, tokens).astype(np.int32))


def _pairs(whole: Architecture, cut: Architecture, layers: tuple[int, ...]) -> Iterator[tuple[Weight, Weight]]:
    """Tensors of the whole model with those of the cut that they become."""
    yield from zip(outer_weights(whole), outer_weights(cut), strict=True)
    for new, old in enumerate(layers):
        if replace(whole.layers[old], kv_from=None, window=0) != replace(cut.layers[new], kv_from=None, window=0):
            raise CrossmeshError(f"Layer {old} of {whole.family} is not what layer {new} of its cut is: models/weights/cut.py is wrong.")
        yield from zip(layer_weights(whole, old), layer_weights(cut, new), strict=True)


def _read(
    folder: Path, pairs: list[tuple[Weight, Weight]], kept: npt.NDArray[Any], layers: tuple[int, ...]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Tensors of the cut by name, read from the whole one after another."""
    with ExitStack() as stack:
        where = {}
        for file in tensor_files(folder):
            handle = stack.enter_context(safe_open(file, "np"))
            where.update(dict.fromkeys(handle.keys(), handle))
        names = locate([name for weight, _ in pairs for name in weight.stored_shapes], where)
        for weight, small in pairs:
            for name, new in zip(weight.stored_shapes, small.stored_shapes, strict=True):
                if name not in names:
                    raise InputError(f"{folder} lacks {name}. Give a complete model folder.")
                part = where[names[name]].get_slice(names[name])
                # Of a table only the rows of known tokens are read.
                array = np.concatenate([part[row : row + 1] for row in kept.tolist()]) if weight.dims[:1] == ("vocab",) else part[:]
                if "layers" in weight.dims:
                    axis = weight.dims.index("layers")
                    whole = (len(array), *weight.out_shape[1:], *weight.in_shape) if axis else weight.out_shape + weight.in_shape
                    array = array.reshape(whole).take(layers, axis).reshape(small.hf_shape)
                yield new, np.ascontiguousarray(array)
