"""What the images of a cluster install can be had: each lock's files, by their hashes, for the platform and Python of its nodes."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(300)]


def installed(checkout: Path) -> set[str]:
    """Locks that the Dockerfile and cluster.yaml name, and Ray's own."""
    files = (checkout / "conf" / "cluster" / "Dockerfile", checkout / "cluster.yaml")
    commands = [line for file in files for line in file.read_text().splitlines() if "install-node.sh" in line]
    return {"head", *(lock for line in commands for lock in re.findall(r"[\w-]+=([\w-]+)", line.partition("install-node.sh")[2]))}


@pytest.mark.parametrize("lock", ["head", "gpu", "gpu-jax", "tpu-train", "tpu-serve", "cpu", "lm-eval"])
def test_every_file_of_a_lock_is_there(lock: str, checkout: Path, tmp_path: Path) -> None:
    assert lock in installed(checkout)
    version = "3.11" if lock in {"cpu", "lm-eval"} else "3.12"
    target = ["--python-platform", "x86_64-manylinux_2_31", "--python-version", version, "--target", str(tmp_path / "there")]
    command = [str(checkout / ".venv" / "bin" / "uv"), "pip", "install", "--dry-run", "--no-deps", "--require-hashes", *target]
    done = subprocess.run([*command, "-r", str(checkout / "requirements" / f"{lock}.txt")], capture_output=True, text=True, check=False)
    if "dns error" in done.stderr or "Connection refused" in done.stderr:
        pytest.skip("needs the package index")
    assert done.returncode == 0, done.stderr
    assert "Would install" in done.stderr


def test_no_lock_that_a_node_installs_is_left_out(checkout: Path) -> None:
    assert installed(checkout) == {"head", "gpu", "gpu-jax", "tpu-train", "tpu-serve", "cpu", "lm-eval"}
