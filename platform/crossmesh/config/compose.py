"""From a command line to a checked `ExperimentSpec`: Hydra composes, the dataclasses check, a person reads one message.

Groups of `conf/` map to our own dataclasses; nothing is instantiated from configuration. Hydra's and OmegaConf's errors are
translated here, once, into `InputError`s that name the key, the value, what is allowed and the nearest valid key.
"""

import atexit
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crossmesh.compat.hydra_core import composing_launcher, is_group_value_error, share_store
from crossmesh.compat.omegaconf_nodes import plain_reason
from crossmesh.config.command_line import hydra_arguments
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.help import help_text
from crossmesh.config.mistakes import no_file_name, translate, unknown_key
from crossmesh.config.schema import known_keys, names, schema, to_dataclass
from crossmesh.config.services import StorageSpec, tracked_in_storage
from crossmesh.errors import CrossmeshError, InputError, require_choice
from crossmesh.signals import terminate_like_interrupt
from crossmesh.storage_check import require_storage

Keys = TypeVar("Keys")

_HELP_ALL = "--help-all"
"""Hydra's own help, which lists every group and key."""
_DISK_FULL = ("No space left on device", "Disk quota exceeded")

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it, and after SIGTERM."""


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
    *,
    slow: bool = False,
    try_storage: bool = True,
) -> None:
    """Run `crossmesh <verb>`: compose its configuration, check it, call `run`, and end the process with the right exit code.

    A `CrossmeshError` becomes its message on stderr and its exit code (`errors.py`); Ctrl-C and SIGTERM become 130. Everything else is a
    bug and keeps its traceback. `conf` is the folder of the config groups. `refused` hears why a configuration cannot be, and says
    whether it has dealt with that: a sweep over what can be goes on. `sweep` gets all points of a sweep (`-m`) together, in place of `run`.
    With `slow` it is said at once that the job starts: what it imports and starts before it has more to say takes seconds.
    Without `try_storage` the job itself says what is wrong with `storage.root`.
    """
    register(verb, keys)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    points: list[SweptJob[Keys]] = []
    _read_arguments(verb, keys, run.__globals__["__doc__"] or "", conf)

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
            if try_storage:
                _try_root(built.spec)
            if slow:
                _say_start(verb, built.spec.name)
            run(built)

    try:
        with terminate_like_interrupt():
            hydra.main(version_base="1.3", config_path=str(conf), config_name=f"job/{verb}")(task)()
            if sweep is not None and points:
                _sweep(verb, points, sweep)
    except (HydraException, OmegaConfBaseException) as error:
        _end(translate(error, keys, conf), InputError.exit_code)
    except ValueError as error:
        if not is_group_value_error(error):
            raise
        _end(no_file_name(conf), InputError.exit_code)
    except KeyboardInterrupt:
        _end("interrupted: what was done is kept; run the same command to continue", INTERRUPTED)


def _read_arguments(verb: str, keys: type[Any], doc: str, conf: Path) -> None:
    """Make the command line readable for Hydra; `--help` is ours and ends the process."""
    if {"--help", "-h"} & set(sys.argv[1:]):
        with suppress(BrokenPipeError):  # `| head` reads no further.
            print(help_text(verb, doc, keys, conf), flush=True)  # noqa: T201
            sys.exit(0)
        os._exit(0)  # Python would say on its way out that it could not write.
    try:
        sys.argv[1:] = hydra_arguments(["--help" if one == _HELP_ALL else one for one in sys.argv[1:]])
    except InputError as error:
        _end(error, error.exit_code)


def _sweep(verb: str, points: Sequence[SweptJob[Keys]], sweep: Callable[[Sequence[SweptJob[Keys]]], None]) -> None:
    roots = {point.job.spec.storage.root: point.job.spec for point in points if isinstance(point.job, Job)}
    with _one_message(", ".join(roots)):
        for spec in roots.values():
            _make_root(spec.storage)
            _try_root(spec)
        _say_start(f"{verb} -m", f"{len(points)} points")
        sweep(points)


def _built(config: DictConfig, keys: type[Keys], conf: Path) -> Job[Keys] | InputError:
    try:
        return build_job(config, keys, conf)
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
    share_store(store)
    Plugins.instance()  # What is installed has registered its launchers now; ours only composes: `sweep/driver.py` is what runs at once.
    store.store(group="hydra/launcher", name="ray", node=composing_launcher())
    store.store(name="schema", node=schema(ExperimentSpec))
    store.store(group="job/keys", name=verb, node=schema(keys), package="_global_")


def build_job(config: DictConfig, keys: type[Keys], conf: Path) -> Job[Keys]:
    """Turn a composed configuration into a checked `Job`; `InputError` when something in it cannot be."""
    try:
        values = {str(key): value for key, value in dict(OmegaConf.to_container(config, resolve=True, throw_on_missing=True)).items()}  # type: ignore[arg-type]
        of_spec, of_job = names(ExperimentSpec), names(keys)
        for key in values:
            if key not in (*of_spec, *of_job):
                raise unknown_key(key, known_keys(keys, conf))
        spec = to_dataclass({key: values[key] for key in of_spec}, ExperimentSpec)
        return Job(spec, to_dataclass({key: values[key] for key in of_job}, keys))
    except OmegaConfBaseException as error:
        raise translate(error, keys, conf) from error


def restore_spec(values: Mapping[str, Any]) -> ExperimentSpec:
    """The spec that `dataclasses.asdict` made these values of. Raises `InputError` where this version has other keys or allows less."""
    try:
        return to_dataclass(dict(values), ExperimentSpec)
    except OmegaConfBaseException as error:
        raise InputError(f"A kept spec does not fit this version of crossmesh: {plain_reason(error)}.") from error


def compose_spec(conf: Path, *overrides: str) -> ExperimentSpec:
    """Compose and check a spec outside a job, for notebooks and tests; keys of jobs are not known here."""
    register("none", _NoKeys)
    try:
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf)):
            return build_job(hydra.compose(config_name="config", overrides=list(overrides)), _NoKeys, conf).spec
    except (HydraException, OmegaConfBaseException) as error:
        raise translate(error, _NoKeys, conf) from error


@dataclass(frozen=True)
class _NoKeys:
    pass


def _say_start(verb: str, what: str) -> None:
    print(f"crossmesh: {verb} is starting: {what}", file=sys.stderr, flush=True)  # noqa: T201


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


def _try_root(spec: ExperimentSpec) -> None:
    require_storage(spec.storage.path, sqlite=tracked_in_storage(spec.tracking, spec.storage))


def _scratch_folder() -> str:
    """A folder that is gone with this process: Hydra writes down a sweep before anything of it has been checked."""
    folder = tempfile.mkdtemp(prefix="crossmesh-sweep-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
