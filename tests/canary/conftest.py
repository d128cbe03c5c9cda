"""What has changed in a library, as `make canary` reads it: one line for each part that a test found missing or different."""

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crossmesh.cluster.session import ray_session
from crossmesh.compat.parts import MissingPartError
from crossmesh.config.services import StorageSpec


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Write the name of what changed, where `make canary` wants it."""
    yield
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception) or "CANARY_CHANGES" not in os.environ:
        return
    error = call.excinfo.value
    reason = " ".join(str(error).split())[:120]
    changed = error.part if isinstance(error, MissingPartError) else f"{item.name} ({type(error).__name__}: {reason})"
    with Path(os.environ["CANARY_CHANGES"]).open("a") as changes:
        changes.write(f"{changed}\n")


@pytest.fixture
def says() -> Callable[[str, str], None]:
    """Fail unless the source of a module, which is not imported, contains a text: what its errors and logs say."""

    def check(module: str, text: str) -> None:
        spec = importlib.util.find_spec(module)
        assert spec is not None, f"{module} does not exist"
        assert spec.origin is not None
        assert text in Path(spec.origin).read_text(encoding="utf-8"), f"{module} does not say {text!r} any more"

    return check


@pytest.fixture(scope="module")
def running_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray on this machine, as jobs start it."""
    with ray_session(StorageSpec(str(tmp_path_factory.mktemp("storage")))):
        yield
