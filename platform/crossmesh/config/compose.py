"""From a command line to a checked `ExperimentSpec`: Hydra composes, the dataclasses check, a person reads one message.

Groups of `conf/` map to our own dataclasses; nothing is instantiated from configuration. Hydra's and OmegaConf's errors are
translated here, once, into `InputError`s that name the key, the value, what is allowed and the nearest valid key.
"""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from crossmesh.compat.hydra_core import is_group_value_error, launcher_config, share_store
from crossmesh.compat.omegaconf_nodes import plain_reason
from crossmesh.config.command_line import hydra_arguments
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.help import help_text
from crossmesh.config.job import Job, build_job
from crossmesh.config.mistakes import no_file_name, translate
from crossmesh.config.points import PointComposer, SweptJobs
from crossmesh.config.schema import schema, to_dataclass
from crossmesh.config.services import StorageSpec, tracked_in_storage
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.signals import terminate_like_interrupt
from crossmesh.storage_check import require_storage

Keys = TypeVar("Keys")

_HELP_ALL = "--help-all"
"""Hydra's own help, which lists every group and key."""
_DISK_FULL = ("No space left on device", "Disk quota exceeded")

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it, and after SIGTERM."""


def run_job(
    verb: str,
    keys: type[Keys],
    run: Callable[[Job[Keys]], None],
    conf: Path,
    sweep: Callable[[SweptJobs[Keys]], None] | None = None,
    *,
    slow: bool = False,
    try_storage: bool = True,
) -> None:
    """Run `crossmesh <verb>`: compose its configuration, check it, call `run`, and end the process with the right exit code.

    A `CrossmeshError` becomes its message on stderr and its exit code (`errors.py`); Ctrl-C and SIGTERM become 130. Everything else is a
    bug and keeps its traceback. `conf` is the folder of the config groups. `sweep` gets the points of a sweep (`-m`) together; without it
    each of them is run. With `slow` it is said at once that the job starts: what it imports and starts before it has more to say takes
    seconds. Without `try_storage` the job itself says what is wrong with `storage.root`.
    """
    register(verb, keys)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting with 1.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    _read_arguments(verb, keys, run.__globals__["__doc__"] or "", conf)

    def run_one(built: Job[Keys] | InputError) -> None:
        if isinstance(built, InputError):
            raise built
        _make_root(built.spec.storage)
        if try_storage:
            _try_root(built.spec)
        if slow:
            _say_start(verb, built.spec.name)
        run(built)

    def task(config: DictConfig) -> None:
        with _one_message(config.storage.root):  # Here, because Hydra prints a line of its own about every exception that passes it.
            run_one(build_job(config, keys, conf))

    def at_points(loader: Any, config: DictConfig, listed: Sequence[Sequence[str]]) -> None:
        launcher = str(config.hydra.runtime.choices["hydra/launcher"])
        compose = PointComposer(loader, config, keys, conf).job
        points = SweptJobs(tuple(tuple(overrides) for overrides in listed), launcher, _on_storage(compose))
        with _one_message(config.storage.root):
            if sweep is None:
                for point in points:
                    run_one(point.job)
                return
            if slow:
                _say_start(f"{verb} -m", f"{len(points)} points")
            sweep(points)

    setattr(task, "at_points", at_points)  # noqa: B010  What `PointSweeper` calls.
    with _hydra_in_our_words(keys, conf), terminate_like_interrupt():
        hydra.main(version_base="1.3", config_path=str(conf), config_name=f"job/{verb}")(task)()


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


def _on_storage(compose: Callable[[tuple[str, ...]], Job[Keys] | InputError]) -> Callable[[tuple[str, ...]], Job[Keys] | InputError]:
    """Make and try each `storage.root` that a point is the first to have."""
    tried: set[StorageSpec] = set()

    def composed(overrides: tuple[str, ...]) -> Job[Keys] | InputError:
        built = compose(overrides)
        if isinstance(built, Job) and built.spec.storage not in tried:
            tried.add(built.spec.storage)
            _make_root(built.spec.storage)
            _try_root(built.spec)
        return built

    return composed


@contextmanager
def _hydra_in_our_words(keys: type[Any], conf: Path) -> Iterator[None]:
    """End the process with one message where Hydra cannot compose, and after an interrupt."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        _end(translate(error, keys, conf), InputError.exit_code)
    except ValueError as error:
        if not is_group_value_error(error):
            raise
        _end(no_file_name(conf), InputError.exit_code)
    except KeyboardInterrupt:
        _end("interrupted: what was done is kept; run the same command to continue", INTERRUPTED)


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


def register(verb: str, keys: type[Any]) -> None:
    """Put the spec's defaults and the job's own keys where the YAML under `conf/` names them."""
    OmegaConf.register_new_resolver("crossmesh.scratch", _scratch_folder, replace=True)
    store = ConfigStore.instance()
    share_store(store)
    Plugins.instance()  # What is installed has registered its launchers now; ours is a name: `sweep/driver.py` is what runs at once.
    store.store(group="hydra/sweeper", name="basic", node=_SweeperConf)
    store.store(group="hydra/launcher", name="ray", node=launcher_config())
    store.store(name="schema", node=schema(ExperimentSpec))
    store.store(group="job/keys", name=verb, node=schema(keys), package="_global_")


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


@dataclass
class _SweeperConf:
    """`hydra.sweeper`."""

    _target_: str = "hydra_plugins.crossmesh_points.PointSweeper"
    params: dict[str, Any] | None = None


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
