"""What integration tests share, because starting it is what costs."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def tiny() -> Any:
    """The module `train_tiny.py`."""
    spec = spec_from_file_location("train_tiny", Path(__file__).with_name("train_tiny.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tiny_storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `tiny_training` left its run."""
    return tmp_path_factory.mktemp("tiny") / "storage"


@pytest.fixture(scope="session")
def tiny_training(tiny: Any, tiny_storage: Path) -> list[dict[str, Any]]:
    """Everything that an uninterrupted tiny training said."""
    process = tiny.start(tiny_storage)
    lines = list(tiny.said(process))
    assert process.wait(timeout=60) == 0
    return lines
