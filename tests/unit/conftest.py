"""The cluster files, as several test files read them."""

from pathlib import Path
from typing import Any

import pytest
import yaml


@pytest.fixture(scope="session")
def launcher(checkout: Path) -> dict[str, Any]:
    """cluster.yaml."""
    return dict(yaml.safe_load((checkout / "cluster.yaml").read_text()))


@pytest.fixture(scope="session")
def kubernetes(checkout: Path) -> dict[str, Any]:
    """conf/cluster/raycluster.yml."""
    return dict(yaml.safe_load((checkout / "conf" / "cluster" / "raycluster.yml").read_text()))
