"""The JAX backend: Tunix models, Qwix LoRA and optax behind the step-level `Backend` protocol.

One jitted program takes an optimizer step: the frozen base comes in as an argument, adapter and optimizer state are donated, micro-batches
are scanned. It has no loop over steps and decides nothing about files beyond its own state.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from crossmesh.adapters.convert import to_peft, to_qwix
from crossmesh.adapters.initial import LoraShape, initial_lora
from crossmesh.data.batches import PackedBatch
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.hardware.mesh import BATCH_AXES
from crossmesh.models import tunix_jax
from crossmesh.models.families import read_architecture
from crossmesh.models.probe import probe
from crossmesh.models.targets import Target, expand_targets
from crossmesh.spec.experiment import OptimSpec
from crossmesh.train.backend import FloatArray, Saving, StepMetrics, TrainingSetup
from crossmesh.train.loss_jax import summed_nll
from crossmesh.train.schedule import learning_rate

_STATE_FILE = "state.safetensors"
_LOSS_ROWS_CPU = 128
_LOSS_ROWS_ACCELERATOR = 1024
"""Rows of logits made at once: few on a CPU, where a block is all that is wasted; many where each block reads the vocabulary from HBM."""


class JaxBackend:
    """Implements `train.backend.Backend` on JAX; one instance trains one adapter."""

    def init(self, setup: TrainingSetup) -> None:
        """Load the base and check its logits, put the seed's initial LoRA values in, make the optimizer. The first step compiles."""
        # Before the first compilation of this process, or JAX ignores it.
        jax.config.update("jax_compilation_cache_dir", str(setup.cache))
        # Accelerators multiply float32 in bfloat16 or TF32 unless told otherwise; a run that says float32 means it.
        jax.config.update("jax_default_matmul_precision", "highest" if setup.model.dtype == "float32" else None)
        self._setup = setup
        self.rank = jax.process_index()
        architecture = read_architecture(setup.model_folder)
        self._targets: tuple[Target, ...] = expand_targets(architecture, setup.lora.targets)
        self._mesh = tunix_jax.device_mesh(setup.mesh)
        self._structure = tunix_jax.build(architecture, setup.model.dtype, setup.lora, self._targets)
        self._base = tunix_jax.load_base(self._structure, setup.model_folder, setup.model.dtype, self._mesh)
        probe(setup.model_folder, architecture, setup.model.dtype, setup.cache / "probes", self._base_logits)
        shapes = [LoraShape(target.hf, target.in_features, target.out_features) for target in self._targets]
        initial = initial_lora(shapes, setup.lora.rank, setup.lora.seed)
        self._lora = tunix_jax.put_lora(self._structure, to_qwix(initial, self._targets), self._mesh)
        zeros = {path: np.zeros_like(array) for path, array in tunix_jax.take_lora(self._lora).items()}
        self._moments = self._optimizer_state(zeros, zeros, 0)
        self._step_count = 0
        self._compile_lazily()

    def step(self, batch: PackedBatch) -> StepMetrics:
        """Take one optimizer step; the first one compiles, or finds the program in the cache folder."""
        rate = learning_rate(self._step_count, self._setup.optim)
        with self._mesh:
            self._lora, self._moments, loss, norm = self._take_step(
                self._lora, self._moments, self._base, self._put(batch), np.float32(rate), np.uint32(self._step_count)
            )
        self._step_count += 1
        return StepMetrics(float(loss), float(norm), rate, batch.loss_tokens)

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        """Loss of `batch` with the adapter as it is, without dropout."""
        with self._mesh:
            loss = self._take_loss(self._lora, self._base, self._put(batch))
        return StepMetrics(float(loss), 0.0, 0.0, batch.loss_tokens)

    def agree(self, flag: bool) -> bool:
        """Whether `flag` is True in any process."""
        return flag

    def save_state(self, folder: Path) -> Saving:
        """Write adapter, both moments and the step count as one safetensors file."""
        adam = self._moments[0]
        parts = {"lora": self._lora, "mu": adam.mu, "nu": adam.nu}
        arrays = {f"{part}.{name}": array for part, state in parts.items() for name, array in self._named(state).items()}
        save_file({**arrays, "count": np.asarray(jax.device_get(adam.count)), "step": np.asarray(self._step_count)}, folder / _STATE_FILE)
        return lambda: None

    def load_state(self, folder: Path) -> None:
        """Continue from `save_state`'s file, bit for bit. Raises `InputError` when it is of another adapter."""
        arrays = load_file(folder / _STATE_FILE)
        try:
            lora, mu, nu = (
                to_qwix(
                    {name.removeprefix(f"{part}."): array for name, array in arrays.items() if name.startswith(f"{part}.")}, self._targets
                )
                for part in ("lora", "mu", "nu")
            )
        except ValueError as error:
            raise InputError(
                f"{folder} holds the state of another adapter: {error}. Start anew, or give the spec it was trained with."
            ) from error
        self._lora = tunix_jax.put_lora(self._structure, lora, self._mesh)
        self._moments = self._optimizer_state(mu, nu, int(arrays["count"]))
        self._step_count = int(arrays["step"])

    def export(self) -> dict[str, FloatArray]:
        """LoRA arrays by PEFT name, float32, on the host."""
        return self._named(self._lora)

    def _base_logits(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Logits of the base without adapter, for the probe."""
        plain = tunix_jax.build(self._structure.architecture, self._setup.model.dtype)
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        compute = jax.jit(functools.partial(tunix_jax.all_logits, plain, plain.lora))
        with self._mesh:
            return np.asarray(compute(self._base, tokens, positions, np.ones_like(tokens)))

    def _named(self, state: Any) -> dict[str, FloatArray]:
        return to_peft(tunix_jax.take_lora(state), self._targets)

    def _optimizer_state(self, mu: Mapping[Any, npt.NDArray[np.float32]], nu: Mapping[Any, npt.NDArray[np.float32]], count: int) -> Any:
        """The optimizer's state laid out as the step gives it back, so that its first call compiles the only program."""
        put = functools.partial(tunix_jax.put_lora, self._structure, mesh=self._mesh)
        counter = jax.device_put(np.int32(count), NamedSharding(self._mesh, PartitionSpec()))
        return (optax.ScaleByAdamState(count=counter, mu=put(mu), nu=put(nu)), optax.EmptyState())

    def _put(self, batch: PackedBatch) -> dict[str, Any]:
        """Place this process's part of the batch on the mesh: sequences over data and fsdp."""
        if not batch.loss_tokens:
            raise CrossmeshError("A batch has no token that carries loss. Check data.max_length and that rows have assistant turns.")
        placed = NamedSharding(self._mesh, PartitionSpec(None, BATCH_AXES, None))
        arrays = {"tokens": batch.tokens, "loss_mask": batch.loss_mask, "positions": batch.positions, "segment_ids": batch.segment_ids}
        return {name: jax.make_array_from_process_local_data(placed, array) for name, array in arrays.items()}

    def _compile_lazily(self) -> None:
        setup, structure = self._setup, self._structure
        rows = _LOSS_ROWS_CPU if jax.default_backend() == "cpu" else _LOSS_ROWS_ACCELERATOR
        trained = functools.partial(_micro_nll, structure, rows, bool(setup.lora.dropout))
        # Dropout is part of the graph that Qwix made: evaluation has a graph without it.
        plain = structure
        if setup.lora.dropout:
            plain = tunix_jax.build(structure.architecture, setup.model.dtype, replace(setup.lora, dropout=0.0), self._targets)
        measured = functools.partial(_micro_nll, plain, rows, False)
        layout = functools.partial(jax.tree.map, lambda array: array.sharding)
        scalar = NamedSharding(self._mesh, PartitionSpec())
        self._take_step = jax.jit(
            functools.partial(_train_step, trained, setup.optim, setup.lora.seed),
            donate_argnums=(0, 1),
            out_shardings=(layout(self._lora), layout(self._moments), scalar, scalar),
        )
        self._take_loss = jax.jit(functools.partial(_mean_nll, measured), out_shardings=scalar)


def _micro_nll(structure: tunix_jax.Structure, rows: int, dropout: bool, lora: Any, base: Any, micro: Mapping[str, Any], key: Any) -> Any:
    """Summed nll of one micro-batch of [micro, length] arrays."""
    mask = tunix_jax.attention_mask(micro["segment_ids"])
    hidden = tunix_jax.hidden_states(structure.graph, lora, base, micro["tokens"], micro["positions"], mask, key if dropout else None)
    # Position t predicts t + 1: row t has target tokens[t + 1] and carries loss where loss_mask[t + 1] does. The last row has none.
    targets = jnp.roll(micro["tokens"], -1, axis=1).reshape(-1)
    carries = jnp.roll(micro["loss_mask"].at[:, 0].set(False), -1, axis=1).reshape(-1)
    weight = tunix_jax.output_weight(structure, base)
    return summed_nll(structure.architecture.logit_softcap, rows, hidden.reshape(-1, hidden.shape[-1]), weight, targets, carries)


def _train_step(
    nll: Any, optim: OptimSpec, seed: int, lora: Any, moments: Any, base: Any, batch: Mapping[str, Any], rate: Any, step: Any
) -> tuple[Any, Any, Any, Any]:
    """One AdamW step on the mean loss of the whole batch: new adapter, new moments, loss, gradient norm before clipping."""
    total = _loss_tokens(batch)
    count = batch["tokens"].shape[0]
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), step), count)
    gradient_of = jax.value_and_grad(lambda values, micro, key: nll(values, base, micro, key) / total)

    def accumulate(carry: Any, one: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, gradient_of(lora, *one)), None

    if count == 1:
        loss, gradient = gradient_of(lora, {name: array[0] for name, array in batch.items()}, keys[0])
    else:
        zero = (jnp.float32(0), jax.tree.map(jnp.zeros_like, lora))
        (loss, gradient), _ = jax.lax.scan(accumulate, zero, (batch, keys))
    norm = optax.global_norm(gradient)
    if optim.clip_norm:
        gradient, _ = optax.clip_by_global_norm(optim.clip_norm).update(gradient, optax.EmptyState())
    update, moments = _optimizer(optim).update(gradient, moments, lora)
    return jax.tree.map(lambda value, change: value - rate * change, lora, update), moments, loss, norm


def _mean_nll(nll: Any, lora: Any, base: Any, batch: Mapping[str, Any]) -> Any:
    """Mean loss of the whole batch."""
    total, _ = jax.lax.scan(lambda sum_, micro: (sum_ + nll(lora, base, micro, None), None), jnp.float32(0), batch)
    return total / _loss_tokens(batch)


def _loss_tokens(batch: Mapping[str, Any]) -> Any:
    return batch["loss_mask"][:, :, 1:].sum(dtype=jnp.float32)


def _optimizer(optim: OptimSpec) -> Any:
    """AdamW but for the learning rate, which multiplies the update: as an argument of the step it costs no compilation."""
    return optax.chain(optax.scale_by_adam(optim.beta1, optim.beta2, optim.epsilon), optax.add_decayed_weights(optim.weight_decay))
