"""Tunix's own Llama with Qwix's own LoRA, as their documentation puts them together: the peers that the JAX backend is measured beside.

Nothing of our modules, loss or step is used; the arrays are ours, so that all contenders compute the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
import qwix
from flax import nnx
from safetensors.numpy import load_file
from tunix.models.llama3 import model as llama3
from tunix.sft import utils
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, _default_loss_fn

from crossmesh.adapters.convert import to_peft, to_qwix
from crossmesh.adapters.initial import initial_lora
from crossmesh.config.training import LoraSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.errors import InputError
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.llama.model_jax import llama_config
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import lora_modules, targets_of
from crossmesh.models.targets import all_weights
from crossmesh.models.weights.model_files import tensor_files

_THETA = 1_000_000.0
"""The rotary base that Tunix 0.1.7 computes every Llama with."""
_MODULES = ".*(q|k|v|o|gate|up|down)_proj"

FloatArrays = dict[str, npt.NDArray[np.float32]]


class StockModel:
    """A Llama of a local folder as Tunix and Qwix make it, float32, with the initial LoRA values of `lora.seed`."""

    def __init__(self, folder: Path, lora: LoraSpec, *, remat: bool) -> None:
        """`remat` computes every decoder layer again in the backward pass. `InputError` for a model that Tunix gets wrong."""
        architecture = read_architecture(folder)
        modules = lora_modules(lora, architecture)
        self._targets = targets_of(modules)
        model = llama3.Llama3(_config(architecture, remat), rngs=nnx.Rngs(0))
        _overwrite(model, nnx.Param, {weight.tunix_path: array for weight, array in _weights(folder, architecture)})
        provider = qwix.LoraProvider(module_path=_MODULES, rank=lora.rank, alpha=lora.alpha)
        self.model = qwix.apply_lora_to_model(model, provider, rngs=nnx.Rngs(0), **model.get_model_input())
        _overwrite(self.model, nnx.LoRAParam, to_qwix(initial_lora(modules, lora.seed), self._targets))

    def adapter(self) -> FloatArrays:
        """The LoRA arrays by PEFT name."""
        arrays = {path: np.asarray(one.get_value()) for path, one in nnx.state(self.model, nnx.LoRAParam).flat_state()}
        return to_peft(arrays, self._targets)


class SeedRecipe:
    """The seed's recipe on Tunix's own `PeftTrainer`: one padded row a sequence, every layer recomputed, the default loss."""

    def __init__(self, folder: Path, lora: LoraSpec, optimizer: Any, accumulation: int) -> None:
        """`accumulation` micro-batches make an optimizer step; 1 hands the trainer no accumulation."""
        self._stock = StockModel(folder, lora, remat=True)
        config = TrainingConfig(eval_every_n_steps=1 << 30, gradient_accumulation_steps=accumulation if accumulation > 1 else None)
        self._trainer = PeftTrainer(self._stock.model, optimizer, config).with_gen_model_input_fn(_padded_input)
        self._trainer.is_managed_externally = True  # Otherwise `train` ends the trainer; nothing else changes.

    def train(self, batches: Sequence[PackedBatch]) -> None:
        """Train on the micro-batches of `batches`, one row a sequence, and wait for the result."""
        self._trainer.train(
            {"tokens": batch.tokens[index], "loss_mask": batch.loss_mask[index], "real": batch.segment_ids[index] > 0}
            for batch in batches
            for index in range(len(batch.tokens))
        )
        jax.block_until_ready(nnx.state(self._stock.model, nnx.LoRAParam))

    def adapter(self) -> FloatArrays:
        """The LoRA arrays by PEFT name."""
        return self._stock.adapter()


def bare_step(folder: Path, lora: LoraSpec, optimizer: Any) -> Callable[[PackedBatch], float]:
    """A jitted step on the stock model, nothing recomputed, for batches of one micro-batch; returns the loss.

    What one would write for packed rows: the block-diagonal mask, restarting positions and Tunix's default loss.
    """
    model = StockModel(folder, lora, remat=False).model
    state = nnx.Optimizer(model, optimizer, wrt=nnx.LoRAParam)

    def step(model: Any, state: Any, batch: Mapping[str, Any]) -> Any:
        segments = batch["segment_ids"]
        mask = utils.make_causal_attn_mask(segments > 0) & (segments[:, :, None] == segments[:, None, :])
        gradient = nnx.value_and_grad(_default_loss_fn, argnums=nnx.DiffState(0, nnx.LoRAParam))
        loss, gradients = gradient(model, batch["tokens"], batch["loss_mask"], batch["positions"], mask)
        state.update(model, gradients)
        return loss

    compiled = nnx.cached_partial(nnx.jit(step, donate_argnums=1), model, state)

    def call(batch: PackedBatch) -> float:
        arrays = ("tokens", "loss_mask", "positions", "segment_ids")
        return float(compiled({name: jnp.asarray(getattr(batch, name)[0]) for name in arrays}))

    return call


def adamw(rate: float, decay: float) -> Any:
    """The optimizer of the contenders."""
    return optax.adamw(rate, weight_decay=decay)


def descent(gain: float) -> Any:
    """Steps of `gain` times the gradient."""
    return optax.sgd(gain)


def _padded_input(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The model's input from one row a sequence, with Tunix's own helpers."""
    real = batch["real"]
    return {
        "input_tokens": batch["tokens"],
        "input_mask": batch["loss_mask"],
        "positions": utils.build_positions_from_mask(real),
        "attention_mask": utils.make_causal_attn_mask(real),
    }


def _config(architecture: Architecture, remat: bool) -> Any:
    layer = architecture.layers[0]
    if architecture.family != "llama" or layer.rope.theta != _THETA:
        raise InputError(
            f"A stock Tunix model needs family llama with a rotary base of {_THETA:g}, which Tunix 0.1.7 always computes with; this is "
            f"{architecture.family} with {layer.rope.theta:g}."
        )
    return replace(llama_config(architecture), remat_config=llama3.RematConfig.DECODER if remat else llama3.RematConfig.NONE)


def _weights(folder: Path, architecture: Architecture) -> Iterator[tuple[Any, npt.NDArray[np.float32]]]:
    """Every weight of the table with its array in Tunix's layout."""
    arrays = {name: array for file in tensor_files(folder) for name, array in load_file(file).items()}
    for weight in all_weights(architecture):
        split = arrays[weight.hf_name].reshape(weight.out_shape + weight.in_shape)
        yield weight, split.transpose(weight.axes) if weight.axes else split


def _overwrite(model: Any, kind: Any, arrays: Mapping[tuple[str | int, ...], npt.NDArray[np.float32]]) -> None:
    """Give the parameters of `kind` the values of `arrays` by path; both must have the same paths and shapes."""
    state = dict(nnx.state(model, kind).flat_state())
    shapes = {path: one.get_value().shape for path, one in state.items()}
    given = {path: array.shape for path, array in arrays.items()}
    if shapes != given:
        raise AssertionError(f"the stock model has other parameters than the table: {sorted(map(str, shapes.items() ^ given.items()))}")
    nnx.update(model, nnx.from_flat_state({path: one.replace(jnp.asarray(arrays[path])) for path, one in state.items()}))
