"""Opens a connection to MLflow: where it is, how long to wait, one migration of a fresh sqlite file, and one clear error.

It knows nothing of runs and metrics (`tracker.py`). MLflow is imported when a connection is opened, not before: that takes seconds.
"""

import logging
import os
import re
import shlex
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.errors import InputError
from crossmesh.files import locked
from crossmesh.track.masking import mask_secrets
from crossmesh.track.run_log import TrackingError

PROCESS_ENVIRONMENT = {
    # With MLflow's own 7 retries a refused connection blocks for four minutes before it is an error.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Its UI would start seven processes for jobs that we do not have.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
"""Variables set in this process when a connection is opened, each only where the user has not set it."""
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SCHEMES = (*_DATABASES, "http", "https", "file", "databricks", "databricks-uc", "uc")
_URIS = (
    "sqlite:////absolute/file.db, http(s)://host:port, postgresql://..., mysql://..., databricks, or empty for a sqlite file under "
    "storage.root={}"
)
_SQLITE = "sqlite:///"
_NOT_IN_SQLITE = "?%"
"""Signs that SQLAlchemy reads as something else than a path."""
_QUIET = {"mlflow": logging.WARNING, "alembic": logging.WARNING, "urllib3.connectionpool": logging.ERROR}
"""Loggers and the least that they may say: migrations and retries are no news, what fails in the end is an error of ours."""
_MISSING_REMEDY = "Check the id, and that tracking.uri names the place where the run was made."
_LOCAL_REMEDY = "Check free space (df -h) and permissions (ls -ld) of its folder, or set tracking.uri to another address."
_REMOTE_REMEDY = (
    "Start that server, correct tracking.uri, or leave tracking.uri empty to track under storage.root; then run the same command again."
)


@dataclass(frozen=True)
class StoreAddress:
    """Where runs and their artifacts are kept."""

    uri: str
    artifacts: str | None
    """Artifact folder as a URI for a database that we open ourselves; None where a server decides."""

    @property
    def database(self) -> Path | None:
        """The sqlite file, or None."""
        return Path(self.uri.removeprefix(_SQLITE)) if self.uri.startswith(_SQLITE) else None

    def local_artifact(self, run_id: str, path: str) -> Path | None:
        """The file of an artifact where it lies on this machine, as MLflow lays artifacts out; None where it does not.

        MLflow's own way, over its database and a copy, takes 25 ms a file (measured); a comparison reads hundreds.
        """
        if self._artifacts is None:
            return None
        file = f"{self._artifacts}/{run_id}/artifacts/{path}"
        return Path(file) if os.path.isfile(file) else None  # noqa: PTH113  # Ten thousand of them: pathlib takes a second.

    @cached_property
    def _artifacts(self) -> str | None:
        return None if self.artifacts is None else unquote(urlsplit(self.artifacts).path)

    @property
    def shown(self) -> str:
        """The URI as it may be printed."""
        return mask_secrets(self.uri)


def store_address(tracking: TrackingSpec, storage: StorageSpec) -> StoreAddress:
    """Resolve `tracking.uri`; empty is a sqlite file and an artifact folder under `storage.root`.

    Raises:
        InputError: a URI of an unknown kind, or one whose meaning would depend on the folder the job was started from.
    """
    artifacts = (storage.path / "artifacts").as_uri()
    if not tracking.uri and (odd := next((sign for sign in _NOT_IN_SQLITE if sign in storage.root), "")):
        raise InputError(
            f"storage.root={storage.root!r} contains {odd!r}, which the address of the sqlite file that MLflow keeps there cannot hold. "
            "Choose another folder, or set tracking.uri to a server."
        )
    if not tracking.uri:
        return StoreAddress(f"{_SQLITE}{storage.path / 'mlflow.db'}", artifacts)
    scheme = re.split(r"[+:]", tracking.uri, maxsplit=1)[0] if ":" in tracking.uri or tracking.uri == "databricks" else ""
    if scheme and scheme not in _SCHEMES:
        raise InputError(f"tracking.uri={mask_secrets(tracking.uri)!r} is of an unknown kind. Allowed: {_URIS.format(storage.root)}.")
    relative = scheme == "sqlite" and not tracking.uri.startswith(f"{_SQLITE}/")
    if not scheme or relative:
        raise InputError(
            f"tracking.uri={mask_secrets(tracking.uri)!r} depends on the folder the job is started from. "
            f"Allowed: {_URIS.format(storage.root)}."
        )
    return StoreAddress(tracking.uri, artifacts if scheme in _DATABASES else None)


class LazyClient:
    """An `MlflowClient` that is opened when it is first used: importing MLflow takes seconds, and a local store is read without it."""

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._opening = threading.Lock()
        self._opened: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return what the client has."""
        with self._opening:
            if self._opened is None:
                self._opened = open_client(self._address)
        return getattr(self._opened, name)


def open_client(address: StoreAddress) -> Any:
    """Return an `MlflowClient` for `address`; a fresh sqlite file is made first, by one process however many come at once."""
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)
    with translated(address, "open the tracking store"):
        if address.database is not None and not address.database.exists():
            _create_database(address.database, address.artifacts)
        return MlflowClient(tracking_uri=address.uri)


def open_experiment(address: StoreAddress, client: Any, name: str) -> str:
    """Return the id of the experiment `name`, made when there is none. Raises `TrackingError` for one that was deleted."""
    with translated(address, f"open experiment {name!r}"):
        find = client.get_experiment_by_name  # Opens a lazy client, which takes the lock of a fresh store itself.
        with _store_lock(address):
            known = find(name)
            if known is None:
                return str(client.create_experiment(name, artifact_location=address.artifacts))
        if known.lifecycle_stage != "active":
            raise TrackingError(
                f"Experiment {name!r} at {address.shown} is deleted. Choose another tracking.experiment, or restore it: "
                f"{_restore_command(address, str(known.experiment_id))}"
            )
        return str(known.experiment_id)


def _restore_command(address: StoreAddress, experiment: str) -> str:
    """Return the command that brings a deleted experiment of this store back."""
    store = shlex.quote(f"MLFLOW_TRACKING_URI={address.shown}")
    return f"env {store} {shlex.quote(sys.executable)} -m mlflow experiments restore --experiment-id {experiment}"


def run_exists(client: Any, run_id: str) -> bool:
    """Whether MLflow has the run and it is not deleted."""
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_run(run_id).info.lifecycle_stage) == "active"
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise


@contextmanager
def translated(address: StoreAddress, action: str) -> Iterator[None]:
    """Turn what MLflow raises while we `action` into one `TrackingError`."""
    try:
        yield
    except TrackingError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        if not isinstance(error, MlflowException | SQLAlchemyError | OSError | ImportError):
            raise
        raise TrackingError(f"Could not {action} at MLflow, {address.shown}: {reason(error)}. {_remedy(address, error)}") from error


def reason(error: BaseException) -> str:
    """Return what the system says where MLflow wraps it in several layers, otherwise the message on one line, without secrets."""
    text = mask_secrets(" ".join(str(error).split()))
    system = re.search(r"\[Errno -?\d+\] ([A-Z][\w ]+)", text)
    return system[1] if system else text[:600].rstrip(".")


def _remedy(address: StoreAddress, error: Exception) -> str:
    if getattr(error, "error_code", "") in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
        return _MISSING_REMEDY
    return _LOCAL_REMEDY if address.database is not None else _REMOTE_REMEDY


@contextmanager
def _store_lock(address: StoreAddress) -> Iterator[None]:
    """Hold the lock beside a sqlite file while something is made that must exist once; other stores look after themselves."""
    if address.database is None:
        yield
        return
    with locked(_lock_file(address.database)):
        yield


def _lock_file(database: Path) -> Path:
    return database.with_name(f"{database.name}.lock")


def _create_database(database: Path, artifacts: str | None) -> None:
    """Run MLflow's migrations on a temporary file and rename it: the database is complete or absent, also after a Ctrl-C."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    with locked(_lock_file(database)):
        if database.exists():
            return
        temporary = database.with_name(f".{database.name}.{uuid.uuid4().hex}")
        try:
            SqlAlchemyStore(f"{_SQLITE}{temporary}", artifacts).engine.dispose()
            temporary.replace(database)
        finally:
            temporary.unlink(missing_ok=True)
