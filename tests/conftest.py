"""Fixtures of the whole suite: every test has its own storage, and none sees the user's."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure() -> None:
    """Take SIGINT back where a background shell had it ignored: processes that tests start would ignore it too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("crossmesh", deadline=None)  # How long an example takes says how busy the machine is.
    settings.load_profile("crossmesh")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of this checkout."""
    return ROOT


@pytest.fixture(scope="session")
def conf(checkout: Path) -> Path:
    """The folder of the config groups."""
    return checkout / "conf"


@pytest.fixture(scope="module", autouse=True)
def nothing_left_connected() -> Iterator[None]:
    """Fail the file after which this process is still connected to a Ray: the tests of the next would meet it."""
    yield
    ray = sys.modules.get("ray")
    assert ray is None or not ray.is_initialized(), (
        "this file leaves its process connected to Ray: call ray.shutdown() or close its session"
    )


@pytest.fixture(autouse=True)
def own_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Point `storage.root` at a folder of this test."""
    root = tmp_path / "storage"
    monkeypatch.setenv("CROSSMESH_STORAGE", str(root))
    return root


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment for a subprocess that runs a job as a user would, with a storage of its own."""
    kept = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "HYDRA_FULL_ERROR"} and not key.startswith("RAY_")}
    return kept | {"CROSSMESH_STORAGE": str(tmp_path_factory.mktemp("user") / "storage")}
