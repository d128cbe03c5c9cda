"""What `adapter_config.json` of a PEFT adapter says: rank and scale of each module, and everything that plain LoRA is not.

Rank-stabilised LoRA and ranks or alphas by module are understood. Whatever else changes what the arrays mean is refused by name,
because merging or serving it as plain LoRA would be silently wrong. Knows nothing of the arrays.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError, reading
from crossmesh.files import read_json
from crossmesh.models.lora import LoraModule, by_pattern, lora_scale
from crossmesh.models.weights.spelling import module_spellings

CONFIG_FILE = "adapter_config.json"
_DEFAULT_RANK = 8
_DEFAULT_ALPHA = 8
"""Of PEFT's `LoraConfig`."""
_MERGE_WITH_PEFT = "Merge it with PEFT itself (merge_and_unload), and use the result as the base"
_PLAIN: Mapping[str, tuple[tuple[object, ...], str]] = {
    "peft_type": (("LORA",), "Only LoRA adapters can be exchanged"),
    "task_type": (("CAUSAL_LM", None), "Only adapters of language models can be exchanged"),
    "bias": (("none",), f"It changes biases of the base as well. {_MERGE_WITH_PEFT}"),
    # These initial values leave the base as it is (peft/tuners/lora/layer.py); pissa, olora, corda, loftq and lora_ga change it.
    "init_lora_weights": (
        (True, False, "gaussian", "eva", "orthogonal"),
        "It changed the weights of the base when training began. Convert it with PEFT's path_initial_model_for_weight_conversion",
    ),
    "use_dora": ((False,), f"DoRA also rescales each weight. {_MERGE_WITH_PEFT}"),
    "use_qalora": ((False,), "QALoRA belongs to one quantized base. Train plain LoRA"),
    "use_bdlora": ((None, False), "Block-diagonal LoRA keeps its arrays in another form. Train plain LoRA"),
    "lora_bias": ((False,), f"Its B has a bias. {_MERGE_WITH_PEFT}"),
    "fan_in_fan_out": ((False,), "Its base keeps weights the other way round. Only linear modules can be exchanged"),
    "modules_to_save": ((None, []), f"It holds whole modules beside LoRA. {_MERGE_WITH_PEFT}"),
    "layer_replication": ((None, []), f"It repeats layers of the base. {_MERGE_WITH_PEFT}"),
    "target_parameters": (
        (None, []),
        "It adapts parameters that are no linear module, such as the fused experts of a mixture of experts, which not every engine can "
        f"serve. {_MERGE_WITH_PEFT}",
    ),
    "trainable_token_indices": ((None, [], {}), f"It holds rows of the embedding. {_MERGE_WITH_PEFT}"),
    "alora_invocation_tokens": ((None, []), "Activated LoRA is on for a part of the text only, which no merged weight can be"),
    "kasa_config": ((None,), f"KaSA cuts singular values of the base. {_MERGE_WITH_PEFT}"),
    "monteclora_config": ((None,), "Its arrays are means of a distribution. Train plain LoRA"),
    "arrow_config": ((None,), "It routes between several adapters. Give one of them"),
}
"""Settings that change what the adapter means, the values at which it is LoRA as we know it, and what is to be said of others.
Absent is plain."""


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter folder says beside its arrays."""

    rank: int
    alpha: float
    dropout: float
    base_model: str
    """Where the base came from; information only."""
    modules: tuple[str, ...]
    """Names of the adapted modules, sorted."""
    rslora: bool = False
    """Rank-stabilised: alpha is divided by the root of the rank (https://arxiv.org/abs/2312.03732)."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """Rank of each module that has one of its own."""
    alphas: Mapping[str, float] = field(default_factory=dict)
    """Alpha of each module that has one of its own."""

    @classmethod
    def of(cls, modules: Sequence[LoraModule], dropout: float, base_model: str) -> "AdapterConfig":
        """The settings of an adapter on `modules`: the most common rank and alpha, and the modules that have others."""
        (rank, _), *_ = Counter(module.rank for module in modules).most_common(1)
        (alpha, _), *_ = Counter(module.alpha for module in modules).most_common(1)
        return cls(
            rank=rank,
            alpha=alpha,
            dropout=dropout,
            base_model=base_model,
            modules=tuple(sorted(module.target.hf for module in modules)),
            rslora=any(module.stabilised for module in modules),
            ranks={module.target.hf: module.rank for module in modules if module.rank != rank},
            alphas={module.target.hf: module.alpha for module in modules if module.alpha != alpha},
        )

    def rank_of(self, module: str) -> int:
        """Rank of `module`."""
        return self.ranks.get(module, self.rank)

    def alpha_of(self, module: str) -> float:
        """Alpha of `module`."""
        return self.alphas.get(module, self.alpha)

    def scale(self, module: str) -> float:
        """The change of a weight is `scale * B @ A`: alpha / rank, or alpha / sqrt(rank) when rank-stabilised."""
        return lora_scale(self.rank_of(module), self.alpha_of(module), self.rslora)

    def json(self) -> dict[str, Any]:
        """As PEFT writes it; `target_modules` gets full module names, so that PEFT and vLLM touch exactly this set."""
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base_model,
            "r": self.rank,
            "lora_alpha": _whole(self.alpha),
            "lora_dropout": self.dropout,
            "target_modules": sorted(self.modules),
            "bias": "none",
            "init_lora_weights": True,
            "inference_mode": True,
            "fan_in_fan_out": False,
            "use_dora": False,
            "use_rslora": self.rslora,
            "modules_to_save": None,
            "rank_pattern": dict(sorted(self.ranks.items())),
            "alpha_pattern": {module: _whole(alpha) for module, alpha in sorted(self.alphas.items())},
        }


def read_config(folder: Path, modules: Sequence[str]) -> AdapterConfig:
    """Read the config of the adapter in `folder`, whose arrays are of `modules`.

    Raises `InputError` for anything that is not plain or rank-stabilised LoRA on linear modules, naming the setting.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no {CONFIG_FILE}, so it is no PEFT adapter. Give the folder that holds it.")
    with reading(path, "a JSON object, as PEFT writes it"):
        # PEFT takes its own default where a file says null.
        config: dict[str, Any] = {key: value for key, value in {**read_json(path)}.items() if value is not None}
    _check_forms(config, path)
    for key, (allowed, why) in _PLAIN.items():
        value = config.get(key, allowed[0])
        if value not in allowed:
            raise InputError(f"{path}: {key}={_short(value)} cannot be used. {why}. Allowed: {allowed[0]!r}.")
    rank, alpha = config.get("r", _DEFAULT_RANK), config.get("lora_alpha", _DEFAULT_ALPHA)
    with reading(path, "patterns as PEFT has them, from a regular expression to a number"):
        ranks = by_pattern(config.get("rank_pattern") or {}, modules)
        alphas = by_pattern(config.get("alpha_pattern") or {}, modules)
    for key, value in [("r", rank), *((f"rank_pattern for {module}", own) for module, own in ranks.items())]:
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise InputError(f"{path}: {key}={value!r} is not possible. Allowed: a positive whole number.")
    for key, value in [("lora_alpha", alpha), *((f"alpha_pattern for {module}", own) for module, own in alphas.items())]:
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise InputError(f"{path}: {key}={value!r} is not possible. Allowed: a number.")
    dropout = config.get("lora_dropout", 0.0)
    if not isinstance(dropout, int | float) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
        raise InputError(f"{path}: lora_dropout={_short(dropout)} is not possible. Allowed: a number from 0 to 1.")
    _check_named(config, modules, path)
    return AdapterConfig(
        rank=rank,
        alpha=float(alpha),
        dropout=float(dropout),
        base_model=str(config.get("base_model_name_or_path") or ""),
        modules=tuple(sorted(modules)),
        rslora=bool(config.get("use_rslora", False)),
        ranks={module: value for module, value in ranks.items() if value != rank},
        alphas={module: float(value) for module, value in alphas.items() if value != alpha},
    )


def _check_forms(config: Mapping[str, Any], path: Path) -> None:
    """Raise `InputError` for a setting of the wrong type."""
    texts = (str, list)
    forms: Mapping[str, tuple[type | tuple[type, ...], str]] = {
        "rank_pattern": (dict, "a map from module to rank"),
        "alpha_pattern": (dict, "a map from module to alpha"),
        "use_rslora": (bool, "true or false"),
        "target_modules": (texts, "names of modules, or a regular expression"),
        "exclude_modules": (texts, "names of modules, or a regular expression"),
        "layers_to_transform": ((int, list), "numbers of layers"),
        "layers_pattern": (texts, "names of the list of layers"),
    }
    for key, (kind, allowed) in forms.items():
        if key in config and not isinstance(config[key], kind):
            raise InputError(f"{path}: {key}={_short(config[key])} is not possible. Allowed: {allowed}.")


def _check_named(config: Mapping[str, Any], modules: Sequence[str], path: Path) -> None:
    """Raise `InputError` unless the arrays are those of the modules that the config names: PEFT applies no others."""
    targets = config.get("target_modules")
    if not modules or not targets:
        return
    for module in modules:
        if not _adapts(config, module, path):
            raise InputError(
                f"{path.parent} holds arrays of {module}, which its target_modules={_short(targets)} and the settings beside it leave out: "
                "PEFT would not apply them. Name the module in target_modules if it was trained, or remove its arrays."
            )
    if isinstance(targets, list):
        absent = [target for target in targets if not any(_is(target, name) for module in modules for name in _names(module))]
        if absent:
            raise InputError(
                f"{path}: target_modules names {absent[0]!r}, of which {path.parent} holds no arrays. Copy the adapter again, or remove "
                "the name if that module was not trained."
            )


def _adapts(config: Mapping[str, Any], module: str, path: Path) -> bool:
    """Whether PEFT adapts `module` (`check_target_module_exists` of peft/tuners/tuners_utils.py)."""
    names = _names(module)
    with _patterns(path):
        targets, excluded, layers = config["target_modules"], config.get("exclude_modules"), config.get("layers_to_transform")
        if excluded and any(_fits(excluded, name) for name in names):
            return False
        if targets == "all-linear":
            return not module.endswith("lm_head")
        if not any(_fits(targets, name) for name in names):
            return False
        if layers is None or layers == [] or isinstance(targets, str):
            return True
        patterns = config.get("layers_pattern") or []
        lists = "|".join(map(re.escape, [patterns] if isinstance(patterns, str) else patterns)) or r"[^.]*"
        found = re.match(rf".*\.(?:{lists})\.(\d+)\.", module)
        return found is not None and int(found[1]) in ([layers] if isinstance(layers, int) else layers)


@contextmanager
def _patterns(path: Path) -> Iterator[None]:
    try:
        yield
    except (re.error, TypeError) as error:
        raise InputError(f"{path}: target_modules or a setting beside it is not a regular expression or list of names: {error}.") from error


def _names(module: str) -> list[str]:
    """Names that a module has had, without the dot that tells prefixes apart."""
    return list(module_spellings(module))


def _fits(wanted: str | Sequence[str], module: str) -> bool:
    if isinstance(wanted, str):
        return re.fullmatch(wanted, module) is not None
    return any(_is(one, module) for one in wanted)


def _is(target: str, module: str) -> bool:
    return module == target or module.endswith(f".{target}")


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
