"""What tpu-inference's wheel says of itself, read in its sources: nothing of it is imported or run, for it needs a TPU's libraries."""

import ast
import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_MODULES = ("models/common/model_loader", "envs", "platforms/tpu_platform", "runner/tpu_runner", "utils", "tpu_info")


def facts_of(wheel: Path) -> dict[str, Any]:
    """Return what our settings of a TPU engine rely on, in the form of `tests/unit/serve/vllm/tpu_inference.json`."""
    with zipfile.ZipFile(wheel) as archive:
        loader, envs, platform, runner, utils, info = (ast.parse(archive.read(f"tpu_inference/{name}.py").decode()) for name in _MODULES)
    return {
        "wheel": wheel.name,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "own_models": sorted(_own_models(loader)),
        "vllm_preferred": sorted(_assigned(loader, "_VLLM_PREFERRED_ARCHITECTURES")),
        "adapters": {"flax_nnx": not _no_manager(_function(loader, "get_flax_model")), "vllm": _has_manager(loader)},
        "choices": {name: list(_choices(envs, name)) for name in ("MODEL_IMPL_TYPE", "TPU_MULTIHOST_BACKEND")},
        "copied_to_workers": sorted({"MODEL_IMPL_TYPE", "TPU_MULTIHOST_BACKEND"} & set(_assigned(platform, "additional_env_vars"))),
        "speculative": sorted(_methods(_function(runner, "_init_speculative_decoding"))),
        "cache_dtypes": sorted(_assigned(utils, "_DTYPE_STR_ALIAS_TO_JAX_DTYPE")),
        "chips_of_one_device": sorted(_chips_of_one_device(_function(info, "get_num_cores_per_chip"))),
        "device_names": sorted(_returned(_function(platform, "get_device_name"))),
        "device_memory": ast.unparse(_function(platform, "get_device_total_memory").body[-1]),
        "refuses_seeds": "JAX does not support per-request seed." in _strings(_function(platform, "validate_request")),
    }


def _function(module: ast.Module, name: str) -> ast.FunctionDef:
    return next(node for node in ast.walk(module) if isinstance(node, ast.FunctionDef) and node.name == name)


def _own_models(loader: ast.Module) -> Iterator[str]:
    """The keys that are put into the registry of models in JAX."""
    for node in ast.walk(_function(loader, "_get_model_architecture")):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "_MODEL_REGISTRY":
            match node.slice:
                case ast.Constant(value=str(name)):
                    yield name


def _assigned(module: ast.Module, name: str) -> tuple[str, ...]:
    """The strings in the value of the variable `name`; of a mapping its keys."""
    for node in ast.walk(module):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            value = node.value
            parts = value.keys if isinstance(value, ast.Dict) else ast.walk(value)
            return tuple(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    raise AssertionError(f"{name} is gone")


def _no_manager(function: ast.FunctionDef) -> bool:
    """Whether the function sets its `lora_manager` to None."""
    return "lora_manager, model = (None, None)" in {ast.unparse(node) for node in ast.walk(function) if isinstance(node, ast.Assign)}


def _has_manager(loader: ast.Module) -> bool:
    """Whether vLLM's own models come with a `lora_manager`."""
    return any("lora_manager = model.load_weights(" in ast.unparse(node) for node in _function(loader, "get_vllm_model").body)


def _choices(envs: ast.Module, name: str) -> tuple[str, ...]:
    """The default of a variable and its allowed values."""
    for node in ast.walk(envs):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "env_with_choices" and ast.literal_eval(node.args[0]) == name:
            return (ast.literal_eval(node.args[1]), *ast.literal_eval(node.args[2]))
    raise AssertionError(f"{name} is gone")


def _methods(function: ast.FunctionDef) -> Iterator[str]:
    """The names that a method of speculation is compared with."""
    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".method"):
            yield from (one.value for one in node.comparators if isinstance(one, ast.Constant) and isinstance(one.value, str))


def _chips_of_one_device(function: ast.FunctionDef) -> tuple[str, ...]:
    """Beginnings of the names of slices for which the function returns 1; it returns 2 for all others."""
    match function.body:
        case [
            *_,
            ast.If(test=ast.Call(args=[names]), body=[ast.Return(value=ast.Constant(value=1))]),
            ast.Return(value=ast.Constant(value=2)),
        ]:
            return tuple(ast.literal_eval(names))
    raise AssertionError("get_num_cores_per_chip is another")


def _returned(function: ast.FunctionDef) -> Iterator[str]:
    """What the function returns, as source code."""
    return (ast.unparse(node.value) for node in ast.walk(function) if isinstance(node, ast.Return) and node.value)


def _strings(function: ast.FunctionDef) -> set[Any]:
    return {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}


def implementation(facts: Mapping[str, Any], architecture: str, variables: Mapping[str, str]) -> str:
    """The implementation that an engine with `variables` takes for `architecture`, as `resolve_model_architecture` and `get_model` do."""
    chosen = variables.get("MODEL_IMPL_TYPE", facts["choices"]["MODEL_IMPL_TYPE"][0])
    if chosen == "auto":
        chosen = "vllm" if architecture in facts["vllm_preferred"] else "flax_nnx"
    return "vllm" if chosen == "flax_nnx" and architecture not in facts["own_models"] else chosen
