"""What a trained model is served with beyond what its base says: tokens that end its answers, and what its chat template was told.

It travels in the header of an adapter's arrays, from where our server takes it for that adapter's requests, and is written into the files
of a whole model: `generation_config.json` and the chat template. Text in, text out: no tokenizer and no engine.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError, reading
from crossmesh.files import canonical_json, read_json, write_json
from crossmesh.model_folder import TEMPLATE_FILE, TOKENIZER_CONFIG, template_of, tokenizer_config

GENERATION_FILE = "generation_config.json"
_MOST_STOPS = 256
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize", "continue_final_message", "strftime_now"}
)
_DIRECTIVES = (*"aAwdbBmyYHIpMSfzZjUWcxXGuVCeDFhRTntsgGklPr", *(f"-{one}" for one in "dmHIMSjyeklUW"))
"""Of `strftime`, as C has them."""


@dataclass(frozen=True)
class ServingDefaults:
    """What requests to a trained model need."""

    stop_ids: tuple[int, ...] = ()
    """Tokens that its answers end with and its base's server does not stop at."""
    template_date: str = ""
    """ISO 8601: the date that the chat template was told; empty: it asks for none."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """`chat_template_kwargs` that all rows had alike."""

    @classmethod
    def of(cls, stop_ids: tuple[int, ...], template_date: str, template_kwargs: Mapping[str, Any]) -> "ServingDefaults":
        """Those of what was trained, without variables that a server sets itself."""
        return cls(stop_ids, template_date, {key: value for key, value in template_kwargs.items() if _is_variable(key)})

    @property
    def asks(self) -> dict[str, Any]:
        """What the chat template is told beside the request, by name."""
        return {
            **self.template_kwargs,
            **({"strftime_now": datetime.fromisoformat(self.template_date).strftime} if self.template_date else {}),
        }

    def text(self) -> str:
        """As it stands in a header; empty when there is nothing to say."""
        said = {key: value for key, value in asdict(self).items() if value}
        return canonical_json(said) if said else ""


def read_defaults(text: str, origin: str) -> ServingDefaults:
    """Read what `ServingDefaults.text` wrote. Raises `InputError` for anything else: adapters come from elsewhere too."""
    if not text:
        return ServingDefaults()
    try:
        found = ServingDefaults(**json.loads(text))
        stops, kwargs = found.stop_ids, found.template_kwargs
        right = isinstance(stops, list | tuple) and len(stops) <= _MOST_STOPS and all(type(one) is int and one >= 0 for one in stops)
        right = right and isinstance(kwargs, dict) and all(map(_is_variable, kwargs))
        if found.template_date:
            datetime.fromisoformat(found.template_date)
    except (ValueError, TypeError, RecursionError):
        right = False
    if not right:
        raise InputError(
            f"{origin}: what it says of serving cannot be used: {text[:200]!r}. Allowed: stop_ids (token ids), template_date "
            "(ISO 8601) and template_kwargs (a JSON object). Copy the adapter again."
        )
    return ServingDefaults(tuple(stops), found.template_date, kwargs)


def _is_variable(key: str) -> bool:
    return key.isidentifier() and key not in _RESERVED


def common_defaults(adapters: Sequence[ServingDefaults]) -> ServingDefaults:
    """What the chat template is told for a base beside its adapters: the same as for them, where they agree."""
    told = {ServingDefaults((), one.template_date, one.template_kwargs).text(): one for one in adapters}
    if len(told) != 1:
        return ServingDefaults()
    ((_, one),) = told.items()
    return ServingDefaults((), one.template_date, one.template_kwargs)


def fixed_template(text: str, defaults: ServingDefaults) -> str:
    """Return the chat template `text` with date and variables of `defaults` in it; a request may still set the variables."""
    head = "".join(
        f"{{%- if {key} is not defined %}}{{%- set {key} = {_literal(value)} %}}{{%- endif %}}"
        for key, value in sorted(defaults.template_kwargs.items())
    )
    if defaults.template_date:
        when = datetime.fromisoformat(defaults.template_date)
        told = "".join(f'|replace("%{one}", {_literal(when.strftime(f"%{one}"))})' for one in _DIRECTIVES)
        head += f'{{%- macro strftime_now(format) -%}}{{{{- format|replace("%%", "\\0"){told}|replace("\\0", "%") -}}}}{{%- endmacro %}}'
    # The plus keeps a line break at the beginning of the template.
    return head.removesuffix("%}") + "+%}" + text if head else text


def _literal(value: Any) -> str:
    """`value`, of JSON, as Jinja writes it."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(_literal(one) for one in value) + "]"
        case None:
            return "none"
    return json.dumps(value, ensure_ascii=False)


def write_defaults(folder: Path, defaults: ServingDefaults) -> tuple[str, ...]:
    """Write `defaults` into the files of the whole model in `folder`; return the names of those that were written."""
    written = []
    if defaults.stop_ids:
        file = folder / GENERATION_FILE
        with reading(file if file.is_file() else folder / "config.json", "a JSON object"):
            said = {**read_json(file)} if file.is_file() else {"eos_token_id": [*_named_ends(read_json(folder / "config.json"))]}
        write_json(file, {**said, "eos_token_id": sorted({*_ids(said.get("eos_token_id")), *defaults.stop_ids})})
        written.append(GENERATION_FILE)
    if defaults.asks:
        written += _fix_template(folder, defaults)
    return tuple(written)


def _named_ends(config: Mapping[str, Any]) -> set[int]:
    return {*_ids(config.get("eos_token_id")), *_ids((config.get("text_config") or {}).get("eos_token_id"))}


def _ids(value: Any) -> list[int]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]


def _fix_template(folder: Path, defaults: ServingDefaults) -> list[str]:
    file, config_file, config = folder / TEMPLATE_FILE, folder / TOKENIZER_CONFIG, tokenizer_config(folder)
    told = template_of(folder)
    if told is None:
        return []
    if not file.is_file() and isinstance(named := config.get("chat_template"), list):
        fixed = [{**one, "template": fixed_template(one["template"], defaults)} for one in named]
        write_json(config_file, {**config, "chat_template": fixed})
        return [TOKENIZER_CONFIG]
    file.write_text(fixed_template(told, defaults), encoding="utf-8")
    if config.pop("chat_template", None) is None:
        return [TEMPLATE_FILE]
    write_json(config_file, config)  # One template, not two of which readers choose.
    return [TEMPLATE_FILE, TOKENIZER_CONFIG]
