"""The libtpu that TPU nodes train with takes the flags that they are started with; plans compile with an older one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.environments import environment
from crossmesh.hardware.catalogue import find_slice

pytestmark = [pytest.mark.integration, pytest.mark.full, pytest.mark.timeout(400)]

LOAD = """
import sys
sys.path.insert(0, sys.argv[1])
import libtpu
from jax.experimental import topologies
assert libtpu.__file__.startswith(sys.argv[1])
print(len(topologies.get_topology_desc("v5p:2x2x1", platform="tpu").devices))
"""


@pytest.fixture(scope="module")
def locked_libtpu(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lock = (checkout / "requirements" / "tpu-train.txt").read_text().splitlines()
    (pinned,) = [line.removesuffix(" \\") for line in lock if line.startswith("libtpu==")]
    folder = tmp_path_factory.mktemp("libtpu")
    uv = [str(checkout / ".venv" / "bin" / "uv"), "pip", "install", "-q", "--python", sys.executable, "--target", str(folder)]
    done = subprocess.run([*uv, "--no-deps", pinned], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{pinned} cannot be had: {done.stderr[-200:]}")
    return folder


@pytest.mark.parametrize(("more", "taken"), [("", True), ("--xla_tpu_no_such_flag=true", False)])
def test_the_locked_libtpu_takes_the_flags_of_training(more: str, taken: bool, locked_libtpu: Path) -> None:
    ours = environment("train/jax", find_slice("tpu_v5p_8").device).variables["LIBTPU_INIT_ARGS"]
    variables = {**os.environ, "LIBTPU_INIT_ARGS": f"{ours} {more}", "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run([sys.executable, "-c", LOAD, str(locked_libtpu)], env=variables, capture_output=True, text=True, check=False)
    if taken:
        assert done.stdout.strip() == "4", done.stderr
    else:
        assert "Unknown command line flag 'xla_tpu_no_such_flag'" in done.stderr
