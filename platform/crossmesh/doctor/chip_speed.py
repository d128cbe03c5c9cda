"""What one chip really does, beside the catalogue: a bf16 matrix product, memory bandwidth, and the libraries under them.

The measurement is a process of its own in the environment of training, with its variables: a library that ends the process, as libtpu does
at a flag that it does not know, is a finding then.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from crossmesh.compat.xla_messages import is_taken, unknown_flag
from crossmesh.doctor.finding import Finding, fault, note, ok
from crossmesh.environments import environment, package_root
from crossmesh.hardware.chips import Chip
from crossmesh.hardware.devices import Device, Tpu

_PRODUCT, _MEMORY, _FLAGS = "bf16 matmul", "memory bandwidth", "XLA flags"
_SHARE = 0.5
"""Of the catalogue's peak. A healthy H100 or v5p does more of both; half is a chip that others use, a throttled or another one."""


@dataclass(frozen=True)
class ChipSpeed:
    """What came of a measurement."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """As `chip_torch.py` and `chip_jax.py` print it; empty: it failed."""
    said: str = ""
    """The end of what a failed one wrote."""


def framework_of(device: Device) -> str:
    """The one that a chip is measured with."""
    return "jax" if isinstance(device, Tpu) else "torch"


def measure_chip(
    framework: str, variables: Mapping[str, str] | None = None, python: str = sys.executable, within_s: float = 60.0
) -> ChipSpeed:
    """Run the measurement in a process of its own; `variables` are set beside this process's."""
    environ = {**os.environ, **(variables or {})}
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(package_root()), *environ.get("PYTHONPATH", "").split(os.pathsep)]))
    command = [python, "-m", f"crossmesh.doctor.chip_{framework}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, env=environ, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return ChipSpeed(said=f"no result within {within_s:g} s")
    except OSError as error:
        return ChipSpeed(said=f"{python}: {error.strerror}")
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0 and last.startswith("{"):
        return ChipSpeed(json.loads(last))
    return ChipSpeed(said=done.stderr.strip()[-2000:] or f"exit code {done.returncode}")


def measured_here(device: Device, within_s: float) -> ChipSpeed:
    """Measure a chip of this machine, without Ray."""
    worker = environment(f"train/{framework_of(device)}", device)
    return measure_chip(framework_of(device), worker.variables, worker.python or sys.executable, within_s)


def chip_findings(measured: ChipSpeed, chip: Chip | None, device: Device) -> Iterator[Finding]:
    """What was measured against the figures of `chip`; a CPU has none, and its own are a note."""
    values = measured.values
    if not values:
        yield _failed(measured.said, device)
        return
    yield from _libraries(values)
    product = f"{values['flops_per_s'] / 1e12:.3g} TFLOP/s with {values['size']} x {values['size']} factors, {values['framework']}"
    memory = f"{values['bytes_per_s'] / 1e9:.3g} GB/s read and written, {values['framework']}"
    if values["platform"] == "cpu":
        yield note(_PRODUCT, f"{product}, on a CPU: the catalogue has no figures of it")
        yield note(_MEMORY, f"{memory}, on a CPU")
        return
    if chip is None:
        yield note(_PRODUCT, f"{product}; the catalogue does not know {values['chip']}", "hardware.catalogue=/path/to/chips.yaml")
        yield note(_MEMORY, memory)
        return
    yield _share_finding(_PRODUCT, product, values["flops_per_s"] / chip.bfloat16, f"MFU of {chip.name}'s peak", device)
    yield _share_finding(_MEMORY, memory, values["bytes_per_s"] / chip.hbm_bytes_per_s, f"of {chip.name}'s", device)


def _share_finding(name: str, found: str, share: float, of: str, device: Device) -> Finding:
    said = f"{found}: {share:.0%} {of}"
    if share >= _SHARE:
        return ok(name, said)
    look = "tpu-info" if isinstance(device, Tpu) else "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,PIDS"
    return fault(
        name, f"{said}, less than {_SHARE:.0%}", f"{look}    # another process on it, throttled, or another chip than hardware= says"
    )


def _libraries(values: Mapping[str, Any]) -> Iterator[Finding]:
    if values.get("nccl"):
        cuda = f", CUDA {values['cuda']}" if values.get("cuda") else ""
        yield ok("NCCL", f"{values['nccl']}{cuda}")
    if values.get("flags") and values["platform"] == "tpu":
        flags = len(shlex.split(values["flags"]))
        yield ok(_FLAGS, f"libtpu {values['libtpu'] or 'of unknown version'} takes all {flags} of LIBTPU_INIT_ARGS")


def _failed(said: str, device: Device) -> Finding:
    if is_taken(said):
        return note(_PRODUCT, "not measured: the chip is in use")
    if flag := unknown_flag(said):
        return fault(_FLAGS, flag, "unset XLA_FLAGS LIBTPU_INIT_ARGS    # yours; ours are those of the locked libtpu")
    last = said.strip().rpartition("\n")[2]
    lock = environment(f"train/{framework_of(device)}", device).lock
    return fault(_PRODUCT, f"no result: {last}", f"PYTHON -m pip install --no-deps --require-hashes -r requirements/{lock}")
