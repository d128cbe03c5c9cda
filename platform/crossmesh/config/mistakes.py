"""What Hydra and OmegaConf find wrong with a command line, as one message: what was given, what is wrong, what is allowed, what to do."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from crossmesh.compat.hydra_core import ambiguous_argument, listed_options, missing_file, unknown_override
from crossmesh.compat.omegaconf_nodes import plain_reason
from crossmesh.config.command_line import unreadable
from crossmesh.config.schema import known_keys, type_of
from crossmesh.config.training import FAMILIES
from crossmesh.errors import InputError, closest_name

_SOURCES = {
    "model": ("model.weights", "hf://"),
    "data": ("data.source", "hf://datasets/"),
    "eval": ("eval.path", ""),
    "bench": ("bench.trace", ""),
    "storage": ("storage.root", ""),
    "tracking": ("tracking.uri", ""),
}
"""Groups to which people give what one of their keys takes, and how an address of the Hugging Face hub begins there."""

_ELSEWHERE = {
    "lr": "optim.learning_rate",
    "max_steps": "optim.steps",
    "num_steps": "optim.steps",
    "warmup": "optim.warmup_steps",
    "r": "lora.rank",
    "lora_r": "lora.rank",
    "lora_rank": "lora.rank",
    "lora_alpha": "lora.alpha",
    "lora_dropout": "lora.dropout",
    "target_modules": "lora.targets",
    "batch_size": "batch.size",
    "train_batch_size": "batch.size",
    "global_batch_size": "batch.size",
    "per_device_train_batch_size": "batch.micro",
    "micro_batch_size": "batch.micro",
    "max_length": "data.max_length",
    "max_seq_len": "data.max_length",
    "max_seq_length": "data.max_length",
    "seq_len": "data.max_length",
    "sequence_len": "data.max_length",
    "dataset": "data.source",
    "dataset_name": "data.source",
    "train_file": "data.source",
    "model_name": "model.weights",
    "model_name_or_path": "model.weights",
    "base_model": "model.weights",
    "dtype": "model.dtype",
    "torch_dtype": "model.dtype",
    "load_in_4bit": "model.quantization",
    "gradient_checkpointing": "backend.remat",
    "attn_implementation": "backend.attention",
    "torch_compile": "backend.compile",
    "save_steps": "checkpoint.every_steps",
    "output_dir": "storage.root",
    "port": "serve.port",
    "tensor_parallel_size": "serve.tp",
    "tp": "mesh.tp",
    "fsdp": "mesh.fsdp",
    "temperature": "eval.temperature",
    "max_tokens": "eval.max_tokens",
    "max_new_tokens": "eval.max_tokens",
    "max_model_len": "serve.max_model_len",
}
"""Keys as transformers, TRL, Axolotl, LLaMA-Factory and vLLM name them."""


def translate(error: BaseException, keys: type[Any], conf: Path) -> InputError:
    """Say in one message what Hydra or OmegaConf found wrong: the key, what was given, what is allowed, the nearest valid key."""
    chain = list(_causes(error))
    for link in chain:
        if isinstance(link, InputError):
            return link
    known = known_keys(keys, conf)
    text = "\n".join(str(link) for link in chain)
    for link in chain:
        if isinstance(link, OverrideParseException):
            return unreadable(str(link.override))
    if argument := ambiguous_argument(text):
        return _swept_value(argument, keys)
    overridden = unknown_override(text)
    unknown = [str(link.full_key) for link in chain if isinstance(link, ConfigKeyError) and link.full_key]
    if overridden or unknown:  # The more exact of the two: `model={a:1}` means model.a, `Batch.size=1` more than Batch.
        return unknown_key(max([*([overridden] if overridden else []), *unknown], key=len), known)
    if missing := missing_file(text):
        group, name = missing
        return _unknown_option(group, name, _options(group, text, conf))
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and (key := str(link.full_key or "")):
            return InputError(f"{argument_of(key)}: {plain_reason(link)}. Allowed: {_allowed_type(key, keys)}.")
    return InputError(" ".join(line.strip() for line in str(error).splitlines() if line.strip()))


def argument_of(key: str) -> str:
    """Return the argument that set `key`, of several the last, which counts; the key itself where none did."""
    return next((argument for argument in reversed(sys.argv[1:]) if argument.lstrip("+~").partition("=")[0] == key), key)


def no_file_name(conf: Path) -> InputError:
    """Name the `group=null` or `group=5` that Hydra refuses without saying which it is."""
    for argument in sys.argv[1:]:
        group, separator, value = argument.partition("=")
        options = sorted(file.stem for file in (conf / group).glob("*.yaml")) if group and "/" not in group else []
        if separator and options and not isinstance(OverridesParser.create().parse_override(argument).value(), str | list):
            return InputError(f"{argument}: {value!r} is not the name of a file. Allowed: {', '.join(options)}.")
    return InputError("An argument has no key. Allowed: key=value, or group=file with the name of a file under conf/.")


def unknown_key(key: str, known: Iterable[str]) -> InputError:
    """Say that a key does not exist, which may be meant, and which there are beside it."""
    options = list(known)
    argument = argument_of(key)
    guess = _meant(key, options)
    parent = key.rpartition(".")[0]
    siblings = [name for name in options if name.rpartition(".")[0] == parent]
    hint = f" Did you mean {guess}?" if guess else ""
    allowed = f" Allowed{f' under {parent}' if parent else ''}: {', '.join(siblings)}." if siblings else ""
    return InputError(f"{argument}: the key {key!r} does not exist.{hint}{allowed}")


def _meant(key: str, options: list[str]) -> str | None:
    """Return the key that is likely meant: by its name elsewhere, by its last part where only one key has that, or by its letters."""
    leaf = key.rpartition(".")[2].replace("-", "_").lower()
    alias = _ELSEWHERE.get(leaf)
    if alias in options and key not in options and (("." not in key) or alias.partition(".")[0] == key.partition(".")[0]):
        return alias
    same = [name for name in options if name.rpartition(".")[2] == leaf and "." in name]
    if "." not in key and len(same) == 1 and leaf not in options:
        return same[0]
    return closest_name(key, options)


def _swept_value(argument: str, keys: type[Any]) -> InputError:
    """Say what `a=1,2` without `-m` may mean."""
    key, _, value = argument.partition("=")
    kind = type_of(key, keys)
    if get_origin(kind) is tuple:
        return InputError(f"{argument}: a list goes in brackets. Write: {key}=[{value}]")
    text = f" For one text with a comma in it write: \"{key}='{value}'\"" if kind is str else ""
    return InputError(f"{argument}: values with a comma between them are a sweep, which -m asks for. Write: -m {argument}{text}")


def _options(group: str, text: str, conf: Path) -> list[str]:
    """Return the files of a group; of Hydra's own groups those that it lists itself."""
    return sorted(file.stem for file in (conf / group).glob("*.yaml")) or listed_options(text)


def _unknown_option(path: str, option: str, options: list[str]) -> InputError:
    path = path.partition("//")[0]
    group = path if path.startswith("hydra/") else path.partition("/")[0]
    value = argument_of(group).partition("=")[2] if "=" in argument_of(group) else option
    if group in _SOURCES and ("/" in value or "." in value):
        return InputError(f"{group}={value}: {value!r} is not the name of a file under conf/{group}. Write: {_source(group, value)}")
    guess = closest_name(option, options)
    hint = f" Did you mean {group}={guess}?" if guess else ""
    allowed = f" Allowed: {', '.join(options)}." if options else ""
    return InputError(f"{group}={value}: the file {value!r} does not exist under conf/{group}.{allowed}{hint}")


def _source(group: str, value: str) -> str:
    """Write what was given to a group as the key that takes it."""
    key, hub = _SOURCES[group]
    address = value if "://" in value or value.startswith(("/", ".")) or value.count("/") != 1 else f"{hub}{value}"
    if group != "model":
        return f"{key}={address}"
    plain = re.sub(r"[^a-z0-9]", "", value.lower())
    family = next((name for name in sorted(FAMILIES.names, key=len, reverse=True) if name.replace("_", "") in plain), None)
    return f"model.family={family or 'FAMILY'} {key}={address}" + ("" if family else f" (FAMILY: one of {', '.join(FAMILIES.names)})")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _allowed_type(key: str, keys: type[Any]) -> str:
    """Say what a dotted key takes, from the dataclass that it stands in."""
    key = re.sub(r"\[.*", "", key)
    kind = type_of(key, keys)
    if isinstance(kind, UnionType):  # `float | None`
        return f"{_KINDS.get(get_args(kind)[0], 'another value')}, or null"
    if get_origin(kind) is tuple:
        return "a list, in brackets: [1,2]" if get_args(kind)[0] in (int, float) else "a list of texts, in brackets: [a,b]"
    if get_origin(kind) is dict:
        return "a map, in braces: {q_proj:8}"
    if is_dataclass(kind):
        return f"keys under it: {', '.join(f'{key}.{name}' for name in get_type_hints(kind))}"
    return _KINDS.get(kind, "another value")
