"""The worker that compiles the very step of the JAX backend for a TPU slice, without a TPU.

Started as `python -m crossmesh.plan.compilers.compile_tpu`.

libtpu compiles for a topology that is not there; arrays are abstract, so neither weights nor memory for them exist. What is asked is a
`store.Question` of kind `tpu` as `compiled.py` writes it. XLA's figures are of one micro-batch on one chip: loops whose length the data
decides (micro-batches, blocks of the loss head) count once, Pallas kernels (splash attention) do not count.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import optax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from crossmesh.compat.xla_messages import needed_memory
from crossmesh.config.training import LoraSpec, ModelSpec, OptimSpec
from crossmesh.errors import CrossmeshError
from crossmesh.hardware.mesh import BATCH_AXES, MeshShape
from crossmesh.models.architecture import Architecture, Experts, LayerKind, Rope
from crossmesh.models.jax import tunix_jax
from crossmesh.models.lora import LoraModule
from crossmesh.models.targets import Target, projections
from crossmesh.plan.compilers.workers import Fields, answer_questions
from crossmesh.train.backend import TrainingSetup
from crossmesh.train.jax_backend import program_of, set_precision
from crossmesh.train.step_jax import BATCH_DTYPES, Program, jitted_step, step_hyperparameters

_log = logging.getLogger(__name__)

"""XLA's refusals say how much the program would have needed, with its arguments and without."""


def main() -> None:
    """Answer the questions on stdin; the log says how long each stage took."""
    # Libraries that Tunix imports have set up logging already.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", force=True)
    answer_questions("tpu", compile_step)


def compile_step(fields: Fields) -> Fields:
    """Compile the step that `fields` describe and say what XLA says of it; bytes and FLOP of one chip.

    `hbm_bytes` at the peak; `memory` by kind, of which `temporaries` is all that is not an argument; `seconds` is XLA's static estimate.
    Where the program needs more than the chip has, XLA says only how much: the other figures are missing.
    """
    architecture, modules = read_model(fields)
    mesh = _mesh(fields)
    setup = _setup(fields, architecture)
    set_precision(setup.model.dtype)
    _log.info("building %d layers", len(architecture.layers))
    program = program_of(setup, architecture, modules, mesh)
    arguments = abstract_arguments(program, fields, mesh)
    kinds = arguments.bytes_by_kind(full=fields["full"])
    _log.info("tracing")
    with mesh, _seen_as_tpu():
        trained, moments = jax.tree.map(lambda array: array.sharding, (arguments.trained, arguments.moments))
        lowered = jitted_step(program, trained, moments, mesh).lower(*arguments.ordered)
    _log.info("compiling")
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        return _too_much(error, kinds)
    _log.info("compiled: %s", compiled.memory_analysis())
    return _figures(compiled, kinds)


def read_model(fields: Fields) -> tuple[Architecture, tuple[LoraModule, ...]]:
    """The model of a question and what LoRA adapts in it; the inverse of `compiled.model_fields`."""
    kinds = [(_layer(kind["layer"]), kind["lora"]) for kind in fields["kinds"]]
    layers = [kinds[index] for index in fields["layers"]]
    sizes = dict(fields["model"])
    experts = sizes.pop("experts")
    architecture = Architecture(
        **sizes,
        layers=tuple(layer for layer, _ in layers),
        max_positions=fields["length"],
        prefix="model.",
        experts=Experts(**experts) if experts else None,
    )
    modules = [
        LoraModule(Target(index, name, projections(architecture, index)[name]), rank, float(rank))
        for index, (_, ranks) in enumerate(layers)
        for name, rank in ranks.items()
    ]
    return architecture, tuple(modules)


def _layer(fields: Mapping[str, Any]) -> LayerKind:
    return LayerKind(**{**fields, "rope": Rope(**fields["rope"])})


def _mesh(fields: Fields) -> Any:
    """The mesh on the devices of the topology, arranged as a run arranges its own."""
    shape = MeshShape(**fields["mesh"])
    slices = {"num_slices": shape.dcn} if shape.dcn > 1 else {}
    try:
        topology = topologies.get_topology_desc(fields["topology"], platform="tpu", **slices)
    except Exception as error:  # What libtpu raises for an unknown name is not documented.
        raise CrossmeshError(f"libtpu does not compile for {fields['topology']}: {' '.join(str(error).split())[:300]}") from error
    return tunix_jax.device_mesh(shape, topology.devices)


def _setup(fields: Fields, architecture: Architecture) -> TrainingSetup:
    full = fields["full"]
    return TrainingSetup(
        model=ModelSpec(architecture.family, dtype=fields["dtype"], quantization=fields["quantization"]),
        model_folder=Path(),
        lora=LoraSpec(rank=0 if full else 1, dropout=0.1 if fields["dropout"] else 0.0),
        optim=OptimSpec(clip_norm=1.0 if fields["clip"] else 0.0),
        mesh=MeshShape(**fields["mesh"]),
        accumulation=2 if fields["accumulates"] else 1,
        remat=fields["remat"],
        compile="none",
        attention=fields["attention"],
        cache=Path(),
    )


@dataclass(frozen=True)
class Arguments:
    """Abstract arguments of the step, each with its sharding."""

    trained: Any
    moments: Any
    frozen: Any
    batch: Any
    micro_batches: Any
    hyperparameters: Any

    @property
    def ordered(self) -> tuple[Any, ...]:
        """As the step takes them."""
        return self.trained, self.moments, self.frozen, self.batch, self.micro_batches, self.hyperparameters

    def bytes_by_kind(self, *, full: bool) -> dict[str, int]:
        """Bytes of a chip. With `full` all weights are trained."""
        base, own = ("frozen", "adapter") if not full else ("buffers", "weights")
        kinds = {"weights" if base == "frozen" else base: self.frozen, own: self.trained, "optimizer": self.moments, "batch": self.batch}
        return {name: size for name, state in kinds.items() if (size := _bytes(state))}


def abstract_arguments(program: Program, fields: Fields, mesh: Any) -> Arguments:
    """What a run of `fields` gives to the step, without arrays."""
    structure = program.structure

    def abstract(state: Any) -> Any:
        shardings = tunix_jax.shardings(structure, state, mesh)
        return jax.tree.map(lambda array, sharding: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), state, shardings)

    trained = abstract(structure.trained)
    count = jax.ShapeDtypeStruct((), np.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    accumulation = 2 if fields["accumulates"] else 1
    shape = (accumulation, fields["micro"] * MeshShape(**fields["mesh"]).dp_size, fields["length"])
    split = NamedSharding(mesh, PartitionSpec(None, BATCH_AXES, None))
    return Arguments(
        trained=trained,
        moments=optax.ScaleByAdamState(count=count, mu=trained, nu=trained),
        frozen=abstract(structure.frozen),
        batch={name: jax.ShapeDtypeStruct(shape, dtype, sharding=split) for name, dtype in BATCH_DTYPES.items()},
        micro_batches=np.int32(accumulation),
        hyperparameters=step_hyperparameters(OptimSpec(), 0, 0.0, 0, 1.0),
    )


def _bytes(state: Any) -> int:
    """Bytes that a chip holds of abstract arrays."""
    arrays = jax.tree.leaves(state)
    return sum(int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize for array in arrays)


@contextmanager
def _seen_as_tpu() -> Iterator[None]:
    """Let Tunix see TPUs while it is traced: on what it takes for a CPU it leaves its own sharding hints out, which a run has."""
    real = jax.devices

    def devices(*args: Any, **kwargs: Any) -> Sequence[Any]:
        return real(*args, **kwargs) if args or kwargs else [SimpleNamespace(platform="tpu")]

    with mock.patch.object(jax, "devices", devices):
        yield


def _figures(compiled: Any, kinds: Mapping[str, int]) -> Fields:
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    peak, arguments = memory.peak_memory_in_bytes, memory.argument_size_in_bytes
    return {
        "hbm_bytes": peak,
        "memory": {**kinds, "padding": arguments - sum(kinds.values()), "temporaries": peak - arguments},
        "flops": costs["flops"],
        "bytes": costs["bytes accessed"],
        "seconds": costs["optimal_seconds"],
    }


def _too_much(error: Exception, kinds: Mapping[str, int]) -> Fields:
    """The figures of a program that XLA refused because it needs too much. Raises `CrossmeshError` when that is not why."""
    arguments = sum(kinds.values())
    needed = needed_memory(str(error))
    if needed is None:
        raise CrossmeshError(f"XLA did not compile the step: {' '.join(str(error).split())[:600]}") from error
    used = needed.bytes + (arguments if needed.temporaries else 0)
    return {"hbm_bytes": used, "memory": {**kinds, "temporaries": used - arguments}}


if __name__ == "__main__":
    main()
