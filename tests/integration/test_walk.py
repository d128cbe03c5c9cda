"""No plan that fits is refused by the worker: every point of the walk that breaks no rule goes through the checks of driver and worker.

The walk is over hardware, meshes, kernels, quantization, precision, what is trained and every shipped architecture. Points are not asked
whether they fit the memory: whatever fits is among those that break no rule.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import (
    ATTENTIONS,
    BackendSpec,
    BatchSpec,
    DataSpec,
    HardwareSpec,
    LoraSpec,
    MeshSpec,
    ModelSpec,
)
from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import slices
from crossmesh.hardware.devices import Cpu
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.placement import place
from crossmesh.models.weights.random_weights import architecture_config, architecture_names
from crossmesh.plan.point import training_point
from crossmesh.plan.training import exact
from crossmesh.plan.training.exact import broken_rules
from crossmesh.train import checks
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.launch import check_trainable
from crossmesh.train.scaling import scaling

pytestmark = pytest.mark.integration

PACKAGE = Path(checks.__file__).parents[1]
ARCHITECTURES = architecture_names()
LOCKED = {line.partition("==")[0] for line in (PACKAGE.parents[1] / "requirements" / "gpu.txt").read_text().splitlines() if "==" in line}
HARDWARE = sorted({(type(one.device), one.device.chip_count()): name for name, one in slices().items()}.values())
"""Of each kind and number of devices one: no rule of a worker asks which chip it is."""
_SMALL = 8
"""Layers of a small model."""
_DIVISORS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Walked:
    """How many points were planned, how many of them break no rule, and those of these that a worker refuses."""

    planned: int
    kept: Counter[str]
    refused: tuple[str, ...]


def specs(architecture: Architecture, hardware: str) -> Iterator[ExperimentSpec]:
    """Every spec of this model on this hardware that can be written; of large models, whose rules take longer, with LoRA in bfloat16."""
    small = len(architecture.layers) <= _SMALL
    dtypes, ranks = (("bfloat16", "float32"), (0, 8)) if small else (("bfloat16",), (8,))
    slice_ = slices()[hardware]
    chips = slice_.device.chip_count()
    meshes = [MeshSpec(1, data, fsdp, tp) for data, fsdp, tp in product(_DIVISORS, repeat=3) if data * fsdp * tp == chips]
    kernels = dict.fromkeys(kernel for one in ATTENTIONS.values() for kernel in one)
    for backend, kernel, quantization, dtype in product(("torch", "jax"), kernels, ("none", "nf4"), dtypes):
        for mesh, rank in product(meshes, ranks):
            try:
                yield ExperimentSpec(
                    model=ModelSpec(family=architecture.family, dtype=dtype, quantization=quantization),
                    data=DataSpec(max_length=128),
                    lora=LoraSpec(rank=rank),
                    batch=BatchSpec(16, 1),
                    hardware=HardwareSpec(hardware),
                    mesh=mesh,
                    backend=BackendSpec(backend, attention=kernel),
                )
            except InputError:
                continue  # Such a spec is refused by the command line itself.


def walk(architecture: Architecture, hardware: str) -> Walked:
    """Plan all, and ask driver and worker of those that break no rule."""
    planned, kept, refused = 0, Counter[str](), []
    for spec in specs(architecture, hardware):
        planned += 1
        if broken_rules(training_point(spec, architecture)):
            continue
        kept[f"{spec.backend_name} {spec.attention}"] += 1
        try:
            ask(spec, architecture)
        except InputError as error:
            refused.append(f"{spec.backend_name} {spec.attention} {spec.model.quantization} {spec.mesh_shape}: {error}")
    return Walked(planned, kept, tuple(refused))


def ask(spec: ExperimentSpec, architecture: Architecture) -> None:
    """What the driver asks before it starts a worker, and the worker before it reads a weight."""
    check_trainable(spec)
    modules = lora_modules(spec.lora, architecture)
    place(architecture, spec.mesh_shape, spec.backend_name, spec.model, modules)
    setup = TrainingSetup.of(spec, Path("model"), Path("cache"))
    device = "cpu" if isinstance(spec.hardware.slice.device, Cpu) else "cuda"
    if spec.backend_name == "torch":
        checks.check_torch(setup, architecture, device)
    else:
        checks.check_jax(setup, architecture)
    workers = scaling(spec)
    if spec.mesh_shape.devices != workers.num_workers * workers.devices_per_worker:
        raise InputError(f"{spec.mesh_shape} on {workers.num_workers} workers of {workers.devices_per_worker} devices")


@pytest.fixture(autouse=True)
def locked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has the packages of the lock of GPU workers, wherever this runs."""
    monkeypatch.setattr(checks, "find_spec", lambda name: SimpleNamespace() if name in LOCKED else None)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_plan_that_fits_is_refused_by_the_worker(name: str) -> None:
    architecture = parse_architecture(architecture_config(name), name)
    found = {hardware: walk(architecture, hardware) for hardware in HARDWARE}
    assert [reason for one in found.values() for reason in one.refused] == []
    assert sum(one.planned for one in found.values()) > sum(one.kept.total() for one in found.values()) > 0


def test_the_walk_is_over_what_there_is() -> None:
    """Every backend and kernel is among the plans that fit, but that which the lock does not have."""
    kept: Counter[str] = Counter()
    for name in ("tiny_llama", "gemma4_31b"):
        architecture = parse_architecture(architecture_config(name), name)
        for hardware in ("cpu", "gpu_2xh100", "tpu_v5p_8"):
            kept += walk(architecture, hardware).kept
    assert set(kept) == {"torch plain", "torch sdpa", "torch flex", "jax plain", "jax splash"}
    assert {"bitsandbytes", "torch"} <= LOCKED
    assert "flash_attn" not in LOCKED


@pytest.mark.parametrize(
    ("rule", "without"),
    [
        ("check_torch_quantization", "bitsandbytes' weights are whole"),
        ("check_kernel", "flash_attn is not installed"),
        ("place", "Allowed: tp one of"),
        ("check_backend", "tie_word_embeddings=false"),
    ],
)
def test_a_rule_that_only_the_worker_has_is_found(rule: str, without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, rule, lambda *_, **__: None)
    exact._placed.cache_clear()
    values = architecture_config("tiny_gemma4")
    architecture = parse_architecture(values | {"tie_word_embeddings": rule != "check_backend"}, "tiny_gemma4")
    found = [walk(architecture, hardware) for hardware in ("gpu_8xh100", "tpu_v6e_8")]
    exact._placed.cache_clear()
    assert any(without in reason for one in found for reason in one.refused)
