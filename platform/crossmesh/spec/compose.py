"""From a command line to a checked `ExperimentSpec`: Hydra composes, the dataclasses check, a person reads one message.

Groups of `conf/` map to our own dataclasses; nothing is instantiated from configuration. Hydra's and OmegaConf's errors are
translated here, once, into `InputError`s that name the key, the value, what is allowed and the nearest valid key.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException, ValidationError

from crossmesh.errors import CrossmeshError, InputError, nearest, require_choice
from crossmesh.spec.experiment import ExperimentSpec

Keys = TypeVar("Keys")

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


@dataclass(frozen=True)
class JobKeys:
    """Keys that every job has; a job's own dataclass adds to them."""

    output: str = "table"
    """`table` for a person; `json` makes the last line of stdout one JSON object with the result."""

    def __post_init__(self) -> None:
        """Check the form."""
        require_choice("output", self.output, ("table", "json"))


@dataclass(frozen=True)
class Job(Generic[Keys]):
    """What one invocation of a job was asked to do."""

    spec: ExperimentSpec
    keys: Keys
    """The job's own keys."""


def run_job(verb: str, keys: type[Keys], run: Callable[[Job[Keys]], None], conf: Path) -> None:
    """Run `jobs/<verb>.py`: compose its configuration, check it, call `run`, and end the process with the right exit code.

    A `CrossmeshError` becomes its message on stderr and its exit code (`errors.py`); Ctrl-C becomes 130. Everything else is a
    bug and keeps its traceback. `conf` is the folder of the config groups.
    """
    register(verb, keys)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1.

    def task(config: DictConfig) -> None:
        try:
            run(build(config, keys, conf))
        except CrossmeshError as error:  # Here, because Hydra prints a line of its own about every exception that passes it.
            _end(error, error.exit_code)

    try:
        hydra.main(version_base="1.3", config_path=str(conf), config_name=f"job/{verb}")(task)()
    except (HydraException, OmegaConfBaseException) as error:
        _end(translate(error, keys, conf), InputError.exit_code)
    except ValueError as error:
        if "Config group override" not in str(error):
            raise
        _end(f"a config group takes the name of a file under conf/, not null or a number: {error}", InputError.exit_code)
    except KeyboardInterrupt:
        _end("interrupted: what was done is kept; run the same command to continue", INTERRUPTED)


def register(verb: str, keys: type[Any]) -> None:
    """Put the spec's defaults and the job's own keys where the YAML under `conf/` names them."""
    store = ConfigStore.instance()
    store.store(name="schema", node=_schema(ExperimentSpec))
    store.store(group="job/keys", name=verb, node=_schema(keys), package="_global_")


def build(config: DictConfig, keys: type[Keys], conf: Path) -> Job[Keys]:
    """Turn a composed configuration into a checked `Job`; `InputError` when something in it cannot be."""
    try:
        values = {str(key): value for key, value in dict(OmegaConf.to_container(config, resolve=True)).items()}  # type: ignore[arg-type]
        of_spec, of_job = _names(ExperimentSpec), _names(keys)
        for key in values:
            if key not in (*of_spec, *of_job):
                raise _unknown_key(key, known_keys(keys, conf))
        spec = _to_dataclass({key: values[key] for key in of_spec}, ExperimentSpec)
        return Job(spec, _to_dataclass({key: values[key] for key in of_job}, keys))
    except OmegaConfBaseException as error:
        raise translate(error, keys, conf) from error


def compose_spec(conf: Path, *overrides: str) -> ExperimentSpec:
    """Compose and check a spec outside a job, for notebooks and tests; keys of jobs are not known here."""
    register("none", _NoKeys)
    try:
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            return build(hydra.compose(config_name="config", overrides=list(overrides)), _NoKeys, conf).spec
    except (HydraException, OmegaConfBaseException) as error:
        raise translate(error, _NoKeys, conf) from error


def known_keys(keys: type[Any], conf: Path) -> tuple[str, ...]:
    """Every dotted key that an override may name, and every config group."""
    groups = [folder.name for folder in sorted(conf.iterdir()) if folder.is_dir() and folder.name != "job"]
    return tuple(dict.fromkeys([*_dotted(_schema(ExperimentSpec)), *_dotted(_schema(keys)), *groups]))


def translate(error: BaseException, keys: type[Any], conf: Path) -> InputError:
    """Say in one message what Hydra or OmegaConf found wrong: the key, what was given, what is allowed, the nearest valid key."""
    chain = list(_causes(error))
    for link in chain:
        if isinstance(link, InputError):
            return link
    known = known_keys(keys, conf)
    text = "\n".join(str(link) for link in chain)
    if match := re.search(r"Could not override '([^']+)'", text) or re.search(r"Could not append value to config. '([^']+)'", text):
        return _unknown_key(match[1], known)
    for link in chain:
        if isinstance(link, ConfigKeyError) and link.full_key:
            return _unknown_key(str(link.full_key), known)
        if isinstance(link, ValidationError):
            key = str(link.full_key or "")
            where = f"{key}: " if key else ""
            return InputError(f"{where}{str(link).splitlines()[0].rstrip('.')}. Allowed: {_allowed_type(link)}.")
    if match := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        return _unknown_option(match[1], match[2], sorted(file.stem for file in (conf / match[1]).glob("*.yaml")))
    if match := re.search(r"(?:parsing|Error parsing) override '([^']*)'", text):
        return InputError(
            f"Cannot read the override {match[1]!r}: {text.splitlines()[1] if len(text.splitlines()) > 1 else text}. "
            "Allowed: key=value, with values of special characters in single quotes inside double quotes."
        )
    return InputError(" ".join(line.strip() for line in str(error).splitlines() if line.strip()))


@dataclass(frozen=True)
class _NoKeys:
    pass


def _end(message: object, code: int) -> None:
    print(f"crossmesh: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def _schema(kind: type[Any]) -> DictConfig:
    """The defaults of a dataclass as a config whose root takes further keys at composition but whose groups are typed."""
    structured = _writable(OmegaConf.structured(kind))
    return OmegaConf.create({key: structured._get_node(key) for key in _names(kind)})


def _writable(config: Any) -> Any:
    """Frozen dataclasses make read-only configs; composition has to write to them before they become frozen."""
    if isinstance(config, DictConfig | ListConfig):
        OmegaConf.set_readonly(config, False)
    if isinstance(config, DictConfig):
        for key in config:
            _writable(config._get_node(key))
    return config


def _to_dataclass(values: dict[Any, Any], kind: type[Keys]) -> Keys:
    return OmegaConf.to_object(OmegaConf.merge(_writable(OmegaConf.structured(kind)), values))  # type: ignore[return-value]


def _dotted(config: DictConfig, prefix: str = "") -> Iterator[str]:
    for key in config:
        name = f"{prefix}{key!s}"
        yield name
        node = config._get_node(key)
        if isinstance(node, DictConfig):
            yield from _dotted(node, f"{name}.")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _unknown_key(key: str, known: Iterable[str]) -> InputError:
    options = list(known)
    given = next((argument for argument in sys.argv[1:] if argument.lstrip("+~").startswith(f"{key}=")), key)
    guess = nearest(key, options)
    parent = key.rpartition(".")[0]
    siblings = [name for name in options if name.rpartition(".")[0] == parent]
    hint = f" Did you mean {guess}?" if guess else ""
    allowed = f" Allowed{f' under {parent}' if parent else ''}: {', '.join(siblings)}." if siblings else ""
    return InputError(f"{given}: there is no key {key!r}.{hint}{allowed}")


def _unknown_option(group: str, option: str, options: list[str]) -> InputError:
    guess = nearest(option, options)
    hint = f" Did you mean {group}={guess}?" if guess else ""
    allowed = f" Allowed: {', '.join(options)}." if options else ""
    return InputError(f"{group}={option}: there is no such file under conf/{group}.{allowed}{hint}")


def _allowed_type(error: ValidationError) -> str:
    match = re.search(r"could not be converted to (\w+)|is not a valid (\w+)", str(error))
    kind = str(match[1] or match[2]) if match else "of another type"
    names = {"Integer": "a whole number", "int": "a whole number", "Float": "a number", "float": "a number", "bool": "true or false"}
    return names.get(kind, f"a value {kind}")
