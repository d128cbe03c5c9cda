"""A trained adapter as a Hugging Face PEFT folder: written, read, checked and digested.

The one format in which adapters travel, whichever backend trained them. Only what plain LoRA on linear modules says can be said;
anything else in a foreign adapter is refused by name, because merging or serving it as plain LoRA would be silently wrong.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from crossmesh.adapters.initial import PEFT_PREFIX, FloatArray, lora_names
from crossmesh.errors import CrossmeshError, InputError, reading
from crossmesh.files import canonical_json, digest_file, digest_text, new_folder, read_json, write_json
from crossmesh.models.families import Architecture
from crossmesh.models.targets import expand_targets
from crossmesh.spec.experiment import LORA_TARGETS

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLED = ("adapter_model.bin", "adapter_model.pt")
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "task_type": ("CAUSAL_LM", None),
    "bias": ("none",),
    "init_lora_weights": (True, False, "gaussian"),
    "use_dora": (False,),
    "use_rslora": (False,),
    "use_qalora": (False,),
    "use_bdlora": (None,),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "alora_invocation_tokens": (None, []),
}
"""Settings of a PEFT LoRA config that change what the adapter means, and the values at which it is plain LoRA. Absent is plain."""


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter folder says beside its arrays."""

    rank: int
    alpha: float
    """The change of a weight is `alpha / rank * B @ A`."""
    dropout: float
    base_model: str
    """Where the base came from; information only."""
    modules: tuple[str, ...]
    """Names of the adapted modules, sorted."""


def write_adapter(
    folder: Path, arrays: Mapping[str, FloatArray], *, rank: int, alpha: float, dropout: float, base_model: str, modules: Sequence[str]
) -> str:
    """Write a PEFT adapter folder, whole or not at all, and return its digest.

    `arrays` are float32 by PEFT name, A [rank, in] and B [out, rank] of each of `modules`. `target_modules` gets the full module
    names, so that PEFT and vLLM touch exactly this set. An existing `folder` must hold the same adapter already; otherwise
    `InputError` is raised and nothing is overwritten.
    """
    _check_arrays(arrays, rank, modules, str(folder))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(modules),
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
        "fan_in_fan_out": False,
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
    }
    with new_folder(folder) as temporary:
        contiguous = {name: np.ascontiguousarray(array, np.float32) for name, array in sorted(arrays.items())}
        save_file(contiguous, str(temporary / WEIGHTS_FILE), metadata={"format": "pt"})
        (temporary / WEIGHTS_FILE).chmod(0o644)  # safetensors makes it private; servers may run as somebody else.
        write_json(temporary / CONFIG_FILE, config)
        digest = adapter_digest(temporary)
    if adapter_digest(folder) != digest:
        raise InputError(f"{folder} already holds another adapter. It is left as it is: remove it, or write to another folder.")
    return digest


def read_adapter(folder: Path) -> tuple[dict[str, FloatArray], AdapterConfig]:
    """Read a PEFT LoRA adapter: float32 arrays by PEFT name, and its settings.

    Raises `InputError` for anything that is not plain LoRA on linear modules in safetensors (pickles, DoRA, biases, saved modules,
    ranks by module, ...), naming the setting.
    """
    config = _read_config(folder)
    arrays = _read_arrays(folder)
    if not arrays:
        raise InputError(f"{folder / WEIGHTS_FILE} holds no arrays. Give a trained adapter.")
    modules = sorted({_module(name, folder) for name in arrays})
    rank = config.get("r")
    if not isinstance(rank, int) or rank <= 0:
        raise InputError(f"{folder / CONFIG_FILE}: r={rank!r} is not possible. Allowed: a positive whole number.")
    _check_arrays(arrays, rank, modules, str(folder))
    settings = AdapterConfig(
        rank=rank,
        alpha=float(config.get("lora_alpha", 8)),  # PEFT's own default
        dropout=float(config.get("lora_dropout", 0.0)),
        base_model=str(config.get("base_model_name_or_path") or ""),
        modules=tuple(modules),
    )
    return arrays, settings


def adapter_digest(folder: Path) -> str:
    """SHA-256 that identifies an adapter: over the digests of its settings and of its arrays."""
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} has no {name}, so it is no PEFT adapter. Give the folder that holds {CONFIG_FILE} and {WEIGHTS_FILE}."
            )
    return digest_text(canonical_json([[name, digest_file(folder / name)] for name in (CONFIG_FILE, WEIGHTS_FILE)]))


def check_fits(arrays: Mapping[str, FloatArray], architecture: Architecture, origin: str) -> None:
    """Raise `InputError` unless every module of the adapter is a projection of this model, with its sizes.

    An engine leaves out what it does not find, and then serves the base under the adapter's name.
    """
    known = {target.hf: (target.in_features, target.out_features) for target in expand_targets(architecture, LORA_TARGETS)}
    for module in sorted({name.removeprefix(PEFT_PREFIX).rsplit(".lora_", 1)[0] for name in arrays}):
        if module not in known:
            raise InputError(
                f"{origin} adapts {module}, which this {architecture.family} model does not have: it is an adapter of another base. "
                "Give the base it was trained on as model.weights, or another adapter."
            )
        name_a, name_b = lora_names(module)
        found = (arrays[name_a].shape[1], arrays[name_b].shape[0])
        if found != known[module]:
            raise InputError(
                f"{origin} adapts {module} with {found[0]} inputs and {found[1]} outputs; in this model it has {known[module][0]} and "
                f"{known[module][1]}: it is an adapter of another base. Give the base it was trained on as model.weights, or another "
                "adapter."
            )


def serving_form(arrays: Mapping[str, FloatArray], architecture: Architecture) -> dict[str, FloatArray]:
    """`arrays` as vLLM needs them: where K and V share one projection, the K arrays also under V's name.

    vLLM 0.32 computes such layers with separate K and V slices and applies an adapter to each by its own name; without the copy the
    change of K does not reach V and the served model is not the trained one.
    """
    served = dict(arrays)
    for index, layer in enumerate(architecture.layers):
        if layer.shared_kv:
            attention = f"{architecture.layer_prefix(index)}self_attn."
            for key, value in zip(lora_names(f"{attention}k_proj"), lora_names(f"{attention}v_proj"), strict=True):
                if key in arrays:
                    served[value] = arrays[key]
    return served


def write_serving_adapter(source: Path, target: Path, architecture: Architecture) -> str:
    """Write the adapter in `source` to `target` in the form that vLLM serves right (`serving_form`); return its digest."""
    arrays, config = read_adapter(source)
    check_fits(arrays, architecture, str(source))
    served = serving_form(arrays, architecture)
    modules = sorted({_module(name, source) for name in served})
    return write_adapter(
        target,
        served,
        rank=config.rank,
        alpha=config.alpha,
        dropout=config.dropout,
        base_model=config.base_model,
        modules=modules,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {CONFIG_FILE}, so it is no PEFT adapter. Give the folder that holds it.")
    with reading(path, "a JSON object, as PEFT writes it"):
        config: dict[str, Any] = {**read_json(path)}
    for key, allowed in _NEUTRAL.items():
        value = config.get(key, allowed[0])
        if value not in allowed:
            raise InputError(f"{path}: {key}={value!r} is not plain LoRA, which alone crossmesh exchanges. Allowed: {allowed[0]!r}.")
    return config


def _read_arrays(folder: Path) -> dict[str, FloatArray]:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = [name for name in _PICKLED if (folder / name).is_file()]
        if pickled:
            raise InputError(
                f"{folder / pickled[0]} is a pickle, which can run code when it is read. Allowed: {WEIGHTS_FILE}. Convert it with PEFT."
            )
        raise InputError(f"{folder} has no {WEIGHTS_FILE}. Give the folder of a trained adapter.")
    try:
        with safe_open(str(path), framework="numpy") as stream:
            return {name: _float32(stream.get_tensor(name)) for name in sorted(stream.keys())}
    except SafetensorError as error:
        raise InputError(f"{path} is damaged: {error}. Copy or export the adapter again.") from error


def _float32(array: Any) -> FloatArray:
    if array.dtype not in (np.float32, np.float16, ml_dtypes.bfloat16):
        raise InputError(f"An adapter array is {array.dtype}. Allowed: float32, float16 and bfloat16.")
    return np.asarray(array, np.float32)


def _module(name: str, folder: Path) -> str:
    for suffix in (".lora_A.weight", ".lora_B.weight"):
        if name.startswith(PEFT_PREFIX) and name.endswith(suffix):
            return name.removeprefix(PEFT_PREFIX).removesuffix(suffix)
    raise InputError(
        f"{folder / WEIGHTS_FILE}: {name} is not LoRA of a linear module. Allowed: {PEFT_PREFIX}<module>.lora_A.weight and .lora_B.weight."
    )


def _check_arrays(arrays: Mapping[str, FloatArray], rank: int, modules: Sequence[str], origin: str) -> None:
    """Check that there is one A and one B of the right rank for each module, all finite, and nothing else."""
    expected = {name for module in modules for name in lora_names(module)}
    differing = sorted(expected ^ arrays.keys())
    if differing:
        raise InputError(
            f"{origin}: {len(differing)} arrays are missing or belong to no module, e.g. {differing[0]}. Each module needs A and B."
        )
    for module in modules:
        name_a, name_b = lora_names(module)
        shape_a, shape_b = arrays[name_a].shape, arrays[name_b].shape
        if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[0] != rank or shape_b[1] != rank:
            raise InputError(
                f"{origin}: {module} has A {shape_a} and B {shape_b}. With rank {rank}, A must be [{rank}, in] and B [out, {rank}]."
            )
    broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise CrossmeshError(f"{origin}: {broken[0]} holds values that are not finite: the training diverged. Lower optim.learning_rate.")
