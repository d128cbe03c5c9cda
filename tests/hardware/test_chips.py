"""What only a chip can show: `make test-gpu` on a machine with an NVIDIA GPU, `make test-tpu HARDWARE=tpu_v5p_8` on a host of that slice.

pytest runs in .venv and starts what computes in the hardware's environment (CROSSMESH_PYTHON_TRAIN_TORCH, CROSSMESH_PYTHON_TRAIN_JAX).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.doctor.accelerators import _is, seen_here
from crossmesh.doctor.chip_speed import chip_findings, measured_here
from crossmesh.doctor.finding import OK
from crossmesh.hardware.catalogue import Slice, find_slice, slices
from crossmesh.hardware.devices import Gpu, Tpu

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def gpu() -> Slice:
    """One GPU of this machine, as the catalogue has it."""
    seen = seen_here()
    if not seen.gpus:
        pytest.skip("this machine has no NVIDIA GPU: nvidia-smi lists none")
    found = [one for one in slices().values() if isinstance(one.device, Gpu) and _is(seen.gpus[0], one.device, one)]
    if not found:
        pytest.skip(f"the catalogue has no {seen.gpus[0].name}")
    return min(found, key=lambda one: one.device.chip_count())


@pytest.fixture(scope="module")
def tpu() -> Slice:
    """The slice that this host is."""
    seen, name = seen_here(), os.environ.get("HARDWARE", "")
    if not seen.tpus:
        pytest.skip("this machine has no TPU: there is neither /dev/accel* nor /dev/vfio/*")
    if not name:
        pytest.skip("which slice this is was not said: make test-tpu HARDWARE=tpu_v5p_8")
    found = find_slice(name)
    if not isinstance(found.device, Tpu) or found.device.hosts > 1:
        pytest.skip(f"HARDWARE={name} is no TPU slice of one host")
    return found


def trained(checkout: Path, hardware: str, *arguments: str) -> None:
    """All losses are those of float32, to within the bound of their precision."""
    command = [sys.executable, str(checkout / "tests" / "hardware" / "train_on_chip.py"), hardware, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["passed"]
    assert [name for name, one in said["figures"].items() if "error" in one] == []
    assert sum("losses" in one for one in said["figures"].values()) >= 3


def measured(chip: Slice, platform: str) -> None:
    """A chip does at least half of what is published of it, in products and in memory."""
    found = measured_here(chip.device, 300.0)
    assert found.values.get("platform") == platform, found.said
    findings = list(chip_findings(found, chip.chip, chip.device))
    assert {"bf16 matmul", "memory bandwidth"} <= {one.name for one in findings}
    assert [one for one in findings if one.status != OK] == []


@pytest.mark.gpu
def test_a_gpu_reaches_half_of_its_published_figures(gpu: Slice) -> None:
    measured(gpu, "cuda")


@pytest.mark.gpu
def test_a_gpu_trains_as_float32_does(gpu: Slice, checkout: Path) -> None:
    trained(checkout, gpu.name, *([] if os.environ.get("CROSSMESH_PYTHON_TRAIN_JAX") else ["--only", "torch"]))


@pytest.mark.tpu
def test_a_tpu_reaches_half_of_its_published_figures_and_takes_our_flags(tpu: Slice) -> None:
    measured(tpu, "tpu")


@pytest.mark.tpu
def test_a_tpu_trains_as_float32_does(tpu: Slice, checkout: Path) -> None:
    trained(checkout, tpu.name)
