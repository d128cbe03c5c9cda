"""The JAX backend: Tunix models, Qwix LoRA and optax behind the step-level `Backend` protocol.

One jitted program takes an optimizer step on the mesh over all processes: the frozen base comes in as an argument, trained arrays and
optimizer state are donated. It has no loop over steps and decides nothing about files beyond its own state.
"""

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import optax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from crossmesh.adapters.convert import to_peft, to_qwix
from crossmesh.adapters.init_adapter import adapted_modules, first_values
from crossmesh.data.batches import PackedBatch
from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.jax import tunix_jax
from crossmesh.models.jax.layers_jax import ModelConfig
from crossmesh.models.lora import LoraModule, targets_of
from crossmesh.models.probe import probe
from crossmesh.models.targets import all_weights
from crossmesh.objectives.objective import LOSS, make_objective
from crossmesh.train.backend import FloatArray, Saving, StepMetrics, TrainingSetup, loss_rows, step_weight
from crossmesh.train.checkpoint_jax import StateFiles
from crossmesh.train.checks import check_jax
from crossmesh.train.schedule import learning_rate
from crossmesh.train.step_jax import BATCH_DTYPES, Program, jitted_parts, jitted_step, mean_losses, step_hyperparameters

_log = logging.getLogger(__name__)


def program_of(setup: TrainingSetup, architecture: Architecture, modules: tuple[LoraModule, ...], mesh: Any) -> Program:
    """What the step of `setup` is compiled for; a planner compiles the same without arrays."""
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    attention = setup.attention
    if attention == "splash" and on_cpu:
        _log.warning("attention=splash runs on TPUs only; this emulated one computes with plain attention.")
        attention = "plain"
    settings = ModelConfig(setup.model.dtype, setup.remat, attention, setup.model.quantization)
    structure = tunix_jax.build(architecture, settings, setup.lora, modules)
    optim = setup.optim
    return Program(
        structure=structure,
        objective=make_objective(setup.objective),
        mesh=mesh,
        loss_rows=loss_rows(on_cpu=on_cpu),
        train_all=setup.lora.full,
        dropout=bool(setup.lora.dropout),
        beta1=optim.beta1,
        beta2=optim.beta2,
        epsilon=optim.epsilon,
        clip=bool(optim.clip_norm),
    )


class JaxBackend:
    """Implements `train.backend.Backend` on JAX; one instance trains one model."""

    def init(self, setup: TrainingSetup) -> None:
        """Load the base and check its logits, put in the LoRA values to start from, make the optimizer. The first step compiles."""
        _configure(setup)
        self._setup = setup
        self.rank = jax.process_index()
        self._architecture = architecture = read_architecture(setup.model_folder)
        check_jax(setup, architecture)
        self._mesh = tunix_jax.device_mesh(setup.mesh)
        self._modules = adapted_modules(setup.lora, setup.init_adapter, architecture)
        self._targets = targets_of(self._modules)
        self._program = program_of(setup, architecture, self._modules, self._mesh)
        structure = self._program.structure
        probe(setup.model_folder, architecture, setup.cache / "probes", self._base_logits, self.agree)
        weights, self._frozen = tunix_jax.load_weights(structure, setup.model_folder, self._mesh)
        self._trained = weights if setup.lora.full else self._initial_adapter()
        places = tunix_jax.shardings(structure, structure.trained, self._mesh)
        self._files = StateFiles(structure.trained, places, self._mesh)
        self._moments = self._no_moments(places)
        self._step_count = 0
        self._compile_lazily()

    def step(self, batch: PackedBatch) -> StepMetrics:
        """Take one optimizer step; the first one compiles, or finds the program in the cache folder."""
        setup = self._setup
        rate = learning_rate(self._step_count, setup.optim)
        weight = step_weight(self._program.objective, batch)
        hyperparameters = step_hyperparameters(setup.optim, setup.lora.seed, rate, self._step_count, weight)
        take = self._step_in_parts if batch.widths else self._whole_step
        with self._mesh:
            self._trained, self._moments, losses, norm = take(batch, hyperparameters)
        self._step_count += 1
        return StepMetrics(float(losses.pop(LOSS)), float(norm), rate, batch.loss_tokens, _floats(losses))

    def _whole_step(self, batch: PackedBatch, hyperparameters: dict[str, Any]) -> Any:
        return self._take_step(self._trained, self._moments, self._frozen, *self._put(batch), hyperparameters)

    def _step_in_parts(self, batch: PackedBatch, hyperparameters: dict[str, Any]) -> Any:
        """A program for each width, whatever the widths of a step: their number is bounded (`data/widths.py`)."""
        losses, gradient = self._parts.begin(self._trained)
        for width in sorted(set(batch.widths), reverse=True):
            part = self._put(batch, [index for index, own in enumerate(batch.widths) if own == width], width)
            losses, gradient = self._parts.accumulate((losses, gradient), self._trained, self._frozen, *part, hyperparameters)
        return self._parts.finish(self._trained, self._moments, gradient, losses, hyperparameters)

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        """Loss of `batch` with the adapter as it is, without dropout."""
        weight = np.float32(step_weight(self._program.objective, batch))
        with self._mesh:
            losses = self._take_loss(self._trained, self._frozen, *self._put(batch), weight)
        return StepMetrics(float(losses.pop(LOSS)), 0.0, 0.0, batch.loss_tokens, _floats(losses))

    def agree(self, flag: bool) -> bool:
        """Whether `flag` is True in any process."""
        if jax.process_count() == 1:
            return flag
        return bool(multihost_utils.process_allgather(np.asarray(flag)).any())

    def save_state(self, folder: Path) -> Saving:
        """Start writing trained arrays, both moments and the step count."""
        with self._mesh:
            return self._files.save(folder, self._trained, self._moments, self._step_count)

    def load_state(self, folder: Path) -> None:
        """Continue from `save_state`'s files, bit for bit. Raises `InputError` when they are of another adapter."""
        with self._mesh:
            self._trained, self._moments, self._step_count = self._files.load(folder)

    def export(self) -> dict[str, FloatArray]:
        """Trained arrays by PEFT name, or by that of the checkpoint without an adapter; float32, on the host of every process."""
        arrays = tunix_jax.on_host(self._trained)
        if not self._setup.lora.full:
            return to_peft(arrays, self._targets)
        arrays |= {path: array.astype(np.float32) for path, array in tunix_jax.on_host(self._frozen).items()}
        return {weight.hf_name: tunix_jax.to_hf(weight, arrays[weight.tunix_path]) for weight in all_weights(self._architecture)}

    def _base_logits(self, folder: Path, architecture: Architecture, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Logits of a base in float32, without adapter, for the probe: another activation or norm would hide in bfloat16's rounding."""
        settings = replace(self._program.structure.settings, dtype="float32", remat="none", attention="plain", quantization="none")
        plain = tunix_jax.build(architecture, settings)
        _, base = tunix_jax.load_weights(plain, folder, self._mesh)
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        whole = NamedSharding(self._mesh, PartitionSpec())
        compute = jax.jit(functools.partial(tunix_jax.all_logits, plain, plain.trained), out_shardings=whole)
        with self._mesh, jax.default_matmul_precision("highest"):  # A TPU multiplies in bfloat16 unless told.
            return np.asarray(compute(base, tokens, positions, np.ones_like(tokens)))

    def _initial_adapter(self) -> Any:
        initial = first_values(self._setup.lora, self._setup.init_adapter, self._modules)
        return tunix_jax.put_trained(self._program.structure, to_qwix(initial, self._targets), self._mesh)

    def _no_moments(self, places: Any) -> optax.ScaleByAdamState:
        """The optimizer's state before the first step."""

        def zeros() -> Any:
            return jax.tree.map(
                lambda array, place: tunix_jax.put(np.zeros(array.shape, np.float32), place), self._program.structure.trained, places
            )

        return optax.ScaleByAdamState(count=self._files.counter(0), mu=zeros(), nu=zeros())

    def _put(self, batch: PackedBatch, which: Sequence[int] = (), width: int | None = None) -> tuple[dict[str, Any], Any]:
        """Micro-batches `which` of the batch, by default all, on the mesh, and how many they are.

        Sequences are over data and fsdp; there are as many micro-batches as a step has at most, the last ones padding.
        """
        which = which or range(len(batch.tokens))
        arrays = {name: getattr(batch, name)[which, :, :width] for name in BATCH_DTYPES}
        padding = ((0, max(self._setup.accumulation - len(which), 0)), (0, 0), (0, 0))
        place = NamedSharding(self._mesh, PartitionSpec(None, BATCH_AXES, None))
        return {name: tunix_jax.put(np.pad(array, padding), place) for name, array in arrays.items()}, np.int32(len(which))

    def _compile_lazily(self) -> None:
        program, layout = self._program, functools.partial(jax.tree.map, lambda array: array.sharding)
        shardings = (layout(self._trained), layout(self._moments), self._mesh)
        self._take_step, self._parts = jitted_step(program, *shardings), jitted_parts(program, *shardings)
        scalar = NamedSharding(self._mesh, PartitionSpec())
        self._take_loss = jax.jit(functools.partial(mean_losses, program), out_shardings=scalar)


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _configure(setup: TrainingSetup) -> None:
    """JAX's settings, before the first compilation of this process, or it ignores the cache."""
    jax.config.update("jax_compilation_cache_dir", str(setup.cache))
    # Every program is kept, small and quick ones too: a second start compiles nothing.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    set_precision(setup.model.dtype)


def set_precision(dtype: str) -> None:
    """Say how this process multiplies: accelerators multiply float32 in bfloat16 or TF32 unless told otherwise, and float32 means it."""
    jax.config.update("jax_default_matmul_precision", "highest" if dtype == "float32" else None)
