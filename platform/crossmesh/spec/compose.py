"""From a command line to a checked `ExperimentSpec`: Hydra composes, the dataclasses check, a person reads one message.

Groups of `conf/` map to our own dataclasses; nothing is instantiated from configuration. Hydra's and OmegaConf's errors are
translated here, once, into `InputError`s that name the key, the value, what is allowed and the nearest valid key.
"""

import atexit
import math
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import hydra
from hydra._internal.core_plugins.basic_launcher import BasicLauncherConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from crossmesh.errors import CrossmeshError, InputError, nearest, require_choice
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.services import StorageSpec

Keys = TypeVar("Keys")

_DISK_FULL = ("No space left on device", "Disk quota exceeded")

_SPECIAL = "= , : ' \" ~ ( ) [ ] { } or a blank at an end"

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


@dataclass(frozen=True)
class SweptJob(Generic[Keys]):
    """One point of a sweep (`-m`)."""

    overrides: tuple[str, ...]
    """What the command line says for this point."""
    job: Job[Keys] | InputError
    """What it comes to, or why it cannot be."""
    launcher: str
    """The file of `hydra/launcher` that was chosen."""


def run_job(
    verb: str,
    keys: type[Keys],
    run: Callable[[Job[Keys]], None],
    conf: Path,
    refused: Callable[[InputError], bool] | None = None,
    sweep: Callable[[Sequence[SweptJob[Keys]]], None] | None = None,
) -> None:
    """Run `jobs/<verb>.py`: compose its configuration, check it, call `run`, and end the process with the right exit code.

    A `CrossmeshError` becomes its message on stderr and its exit code (`errors.py`); Ctrl-C becomes 130. Everything else is a
    bug and keeps its traceback. `conf` is the folder of the config groups. `refused` hears why a configuration cannot be, and says
    whether it has dealt with that: a sweep over what can be goes on. `sweep` gets all points of a sweep (`-m`) together, in place of `run`.
    """
    register(verb, keys)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1.
    points: list[SweptJob[Keys]] = []

    def task(config: DictConfig) -> None:
        overrides = sweep_overrides()
        if sweep is not None and overrides is not None:
            launcher = str(HydraConfig.get().runtime.choices["hydra/launcher"])
            points.append(SweptJob(overrides, _built(config, keys, conf), launcher))
            return
        with _one_message(config.storage.root):  # Here, because Hydra prints a line of its own about every exception that passes it.
            built = _built(config, keys, conf)
            if isinstance(built, InputError):
                if refused is None or not refused(built):
                    raise built
                return
            _make_root(built.spec.storage)
            run(built)

    try:
        hydra.main(version_base="1.3", config_path=str(conf), config_name=f"job/{verb}")(task)()
        if sweep is not None and points:
            roots = {point.job.spec.storage.root: point.job.spec.storage for point in points if isinstance(point.job, Job)}
            with _one_message(", ".join(roots)):
                for storage in roots.values():
                    _make_root(storage)
                sweep(points)
    except (HydraException, OmegaConfBaseException) as error:
        _end(translate(error, keys, conf), InputError.exit_code)
    except ValueError as error:
        if "Config group override" not in str(error):
            raise
        _end(_no_file_name(conf), InputError.exit_code)
    except KeyboardInterrupt:
        _end("interrupted: what was done is kept; run the same command to continue", INTERRUPTED)


def _built(config: DictConfig, keys: type[Keys], conf: Path) -> Job[Keys] | InputError:
    try:
        return build(config, keys, conf)
    except InputError as error:
        return error


@contextmanager
def _one_message(root: str) -> Iterator[None]:
    """End the process with one message and the exit code of a `CrossmeshError`, or of a full disk."""
    try:
        yield
    except CrossmeshError as error:
        _end(error, error.exit_code)
    except Exception as error:
        # By its words: it may have come through Ray or out of Rust, where it is no `OSError` any more.
        full = next((words for words in _DISK_FULL if words in str(error)), None)
        if full is None:
            raise
        _end(
            f"{full}. The job writes under storage.root={root!r} and to the temporary folder: make room, or set storage.root to a larger "
            "disk. What was done is kept; run the same command to continue.",
            CrossmeshError.exit_code,
        )


def sweep_overrides() -> tuple[str, ...] | None:
    """What the command line of this point of a sweep (`-m`) sets; None outside a sweep."""
    config = HydraConfig.get()
    return tuple(config.overrides.task) if config.mode == RunMode.MULTIRUN else None


def sweep_size() -> int | None:
    """Points of the sweep that the command line asks for; None outside a sweep, or where only Hydra can tell."""
    given = [argument for argument in sys.argv[1:] if "=" in argument and not argument.startswith("-")]
    if HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    swept = [one for one in OverridesParser.create().parse_overrides(given) if one.is_sweep_override()]
    try:
        return math.prod(len(list(one.sweep_string_iterator())) for one in swept)
    except HydraException:  # A pattern, whose options only Hydra's own loader knows.
        return None


def register(verb: str, keys: type[Any]) -> None:
    """Put the spec's defaults and the job's own keys where the YAML under `conf/` names them."""
    OmegaConf.register_new_resolver("crossmesh.scratch", _scratch_folder, replace=True)
    store = ConfigStore.instance()
    # Hydra copies the whole store for each group that it lists, which takes `--help` seconds; nobody changes it, and `load` gives copies.
    vars(store)["__deepcopy__"] = lambda _memo: store
    Plugins.instance()  # What is installed has registered its launchers now; ours only composes: `sweep/driver.py` is what runs at once.
    store.store(group="hydra/launcher", name="ray", node=BasicLauncherConf)
    store.store(name="schema", node=_schema(ExperimentSpec))
    store.store(group="job/keys", name=verb, node=_schema(keys), package="_global_")


def build(config: DictConfig, keys: type[Keys], conf: Path) -> Job[Keys]:
    """Turn a composed configuration into a checked `Job`; `InputError` when something in it cannot be."""
    try:
        values = {str(key): value for key, value in dict(OmegaConf.to_container(config, resolve=True, throw_on_missing=True)).items()}  # type: ignore[arg-type]
        of_spec, of_job = _names(ExperimentSpec), _names(keys)
        for key in values:
            if key not in (*of_spec, *of_job):
                raise _unknown_key(key, known_keys(keys, conf))
        spec = _to_dataclass({key: values[key] for key in of_spec}, ExperimentSpec)
        return Job(spec, _to_dataclass({key: values[key] for key in of_job}, keys))
    except OmegaConfBaseException as error:
        raise translate(error, keys, conf) from error


def restore_spec(values: Mapping[str, Any]) -> ExperimentSpec:
    """The spec that `dataclasses.asdict` made these values of. Raises `InputError` where this version has other keys or allows less."""
    try:
        return _to_dataclass(dict(values), ExperimentSpec)
    except OmegaConfBaseException as error:
        raise InputError(f"A kept spec does not fit this version of crossmesh: {_reason(error)}.") from error


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
    groups = [folder.name for folder in sorted(conf.iterdir()) if folder.name != "job" and any(folder.glob("*.yaml"))]
    return tuple(dict.fromkeys([*_dotted(_schema(ExperimentSpec)), *_dotted(_schema(keys)), *groups]))


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
            return InputError(
                f"Cannot read {link.override!r}. Allowed: key=value; a value with one of the characters {_SPECIAL} goes in quotes that the "
                f"shell leaves alone, e.g. \"name='a=b'\"; ~ is not expanded, write the whole path."
            )
    match = re.search(r"Could not override '([^']+)'", text) or re.search(r"Could not append value to config. '([^']+)'", text)
    unknown = [str(link.full_key) for link in chain if isinstance(link, ConfigKeyError) and link.full_key]
    if match or unknown:  # The more exact of the two: `model={a:1}` means model.a, `Batch.size=1` more than Batch.
        return _unknown_key(max([*([match[1]] if match else []), *unknown], key=len), known)
    if match := re.search(r"Could not find '([^']+)/([^'/]*)'", text):
        return _unknown_option(match[1], match[2], sorted(file.stem for file in (conf / match[1]).glob("*.yaml")))
    for link in chain:
        if isinstance(link, OmegaConfBaseException) and (key := str(link.full_key or "")):
            return InputError(f"{_given(key)}: {_reason(link)}. Allowed: {_allowed_type(key, keys)}.")
    return InputError(" ".join(line.strip() for line in str(error).splitlines() if line.strip()))


@dataclass(frozen=True)
class _NoKeys:
    pass


def _end(message: object, code: int) -> None:
    print(f"crossmesh: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _make_root(storage: StorageSpec) -> None:
    """Make `storage.root`, so that a job that could store nothing ends before it starts."""
    reason = "it is not writable"
    try:
        storage.path.mkdir(parents=True, exist_ok=True)
        if os.access(storage.path, os.W_OK | os.X_OK):
            return
    except OSError as error:
        reason = str(error.strerror)
    raise InputError(
        f"storage.root={storage.root!r} cannot be used: {reason}. Allowed: a folder that is writable or can be made. "
        "Set storage.root, or the environment variable CROSSMESH_STORAGE."
    )


def _scratch_folder() -> str:
    """A folder that is gone with this process: Hydra writes down a sweep before anything of it has been checked."""
    folder = tempfile.mkdtemp(prefix="crossmesh-sweep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
        if OmegaConf.get_type(config) is dict:
            OmegaConf.set_struct(config, False)  # Its keys are the user's, not a schema's.
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


def _given(key: str) -> str:
    """The argument that set `key`, or the key itself."""
    return next((argument for argument in sys.argv[1:] if argument.lstrip("+~").partition("=")[0] == key), key)


def _reason(error: OmegaConfBaseException) -> str:
    """What OmegaConf says is wrong, in words that do not speak of its own types."""
    text = str(error).splitlines()[0].rstrip(".")
    if "is not Optional" in text:
        return "null is not a value here"
    if "not support deletion" in text:
        return "a key can be set but not taken away"
    if re.match(r"Cannot (merge|convert|assign)|Invalid (value|type) assigned", text):
        return "the value is of another kind"
    return text


def _no_file_name(conf: Path) -> InputError:
    """Name the `group=null` or `group=5` that Hydra refuses without saying which it is."""
    for argument in sys.argv[1:]:
        group, separator, value = argument.partition("=")
        options = sorted(file.stem for file in (conf / group).glob("*.yaml")) if group and "/" not in group else []
        if separator and options and not isinstance(OverridesParser.create().parse_override(argument).value(), str | list):
            return InputError(f"{argument}: {value!r} is no file name. Allowed: {', '.join(options)}.")
    return InputError("An argument has no key. Allowed: key=value, or group=file with the name of a file under conf/.")


def _unknown_key(key: str, known: Iterable[str]) -> InputError:
    options = list(known)
    given = _given(key)
    guess = nearest(key, options)
    parent = key.rpartition(".")[0]
    siblings = [name for name in options if name.rpartition(".")[0] == parent]
    hint = f" Did you mean {guess}?" if guess else ""
    allowed = f" Allowed{f' under {parent}' if parent else ''}: {', '.join(siblings)}." if siblings else ""
    return InputError(f"{given}: there is no key {key!r}.{hint}{allowed}")


def _unknown_option(group: str, option: str, options: list[str]) -> InputError:
    group = group.partition("//")[0]
    guess = nearest(option, options)
    hint = f" Did you mean {group}={guess}?" if guess else ""
    allowed = f" Allowed: {', '.join(options)}." if options else ""
    return InputError(f"{_given(group)}: there is no file {option!r} under conf/{group}.{allowed}{hint}")


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _allowed_type(key: str, keys: type[Any]) -> str:
    """Say what a dotted key takes, from the dataclass that it stands in."""
    hints = {**get_type_hints(ExperimentSpec), **get_type_hints(keys)}
    kind: Any = None
    for name in re.sub(r"\[.*", "", key).split("."):
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
            break
        kind = hints.get(name)
        hints = get_type_hints(kind) if is_dataclass(kind) else {}
    if get_origin(kind) is tuple:
        return "a list, in brackets: [1,2]" if get_args(kind)[0] in (int, float) else "a list of texts, in brackets: [a,b]"
    if get_origin(kind) is dict:
        return "a map, in braces: {q_proj:8}"
    if is_dataclass(kind):
        return f"keys under it: {', '.join(f'{key}.{name}' for name in hints)}"
    return _KINDS.get(kind, "another value")
