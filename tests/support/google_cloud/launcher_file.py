"""cluster.yaml of this checkout as a user has it after filling it in."""

from pathlib import Path
from typing import Any

import yaml

PROJECT, REGION, ZONE = "boxed-project", "us-east5", "us-east5-a"
SHARE = "10.128.0.3"


def launcher_file(checkout: Path) -> str:
    """The file's text with what its own first comment tells a user to fill in; region and zone are the file's."""
    text = (checkout / "cluster.yaml").read_text(encoding="utf-8")
    for given, own in {
        "project_id: your-project": f"project_id: {PROJECT}",  # The user's project.
        "10.0.0.2:/crossmesh": f"{SHARE}:/crossmesh",  # The address of the user's file share.
    }.items():
        assert text.count(given) == 1, given
        text = text.replace(given, own)
    assert f"availability_zone: {ZONE}" in text
    return text


def launcher_config(checkout: Path) -> dict[str, Any]:
    """The same as Ray loads it."""
    return dict(yaml.safe_load(launcher_file(checkout)))
