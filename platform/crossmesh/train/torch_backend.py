"""The torch backend: a transformers model, PEFT's LoRA layers and torch's AdamW behind the `Backend` protocol.

One optimizer step at a time; looping, logging and the checkpoint policy are the loop's. Building and dividing the model is
`model_torch`'s, the loss head `loss_torch`'s, the files of the state `state_torch`'s.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from crossmesh.compat.torch_core import norms_of, scale_all
from crossmesh.data.batches import ARRAYS, PackedBatch
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.torch.hf_torch import DTYPES, model_inputs
from crossmesh.objectives.objective import LOSS
from crossmesh.train.backend import Saving, StepMetrics, TrainingSetup, step_weight
from crossmesh.train.checks import check_torch
from crossmesh.train.model_torch import LossModel, MicroBatch, Trained, build, checkpoint_buffers
from crossmesh.train.ranks_torch import Ranks
from crossmesh.train.schedule import learning_rate
from crossmesh.train.sharding_torch import drop_gathered, local, sum_partial_gradients, sync_gradients
from crossmesh.train.state_torch import StateFiles, Stored

FloatArray = npt.NDArray[np.float32]

_log = logging.getLogger(__name__)
_MOMENTS = ("exp_avg", "exp_avg_sq")


class TorchBackend:
    """`Backend` on one device a process: its GPU where there is one, otherwise the CPU."""

    def init(self, setup: TrainingSetup) -> None:
        """Take this rank's place, load its part of the base, put in the LoRA values to start from, make the optimizer."""
        architecture = read_architecture(setup.model_folder)
        replicated = check_torch(setup, architecture, "cuda" if torch.cuda.is_available() else "cpu").message
        ranks = Ranks.join(setup.mesh)
        if replicated and ranks.rank == 0:
            _log.warning("%s", replicated)
        # A run that says float32 means it; with a bfloat16 base, LoRA's float32 products need no more than TF32.
        torch.set_float32_matmul_precision("highest" if setup.model.dtype == "float32" else "high")
        self.adopt(setup, architecture, ranks, *build(setup, architecture, ranks))

    def adopt(
        self, setup: TrainingSetup, architecture: Architecture, ranks: Ranks, model: LossModel, trained: Mapping[str, Trained]
    ) -> None:
        """Train this `model`, whose parameters `trained` learn: what is left of `init` when the model is there."""
        self._setup, self._architecture, self._ranks = setup, architecture, ranks
        self._model, self._trained = model, trained
        self.rank, self._device, self._dtype = ranks.rank, ranks.device, DTYPES[setup.model.dtype]
        # AdamW is element by element, so each rank updates plain tensors: its own parts.
        self._parts = [local(one.parameter).detach().requires_grad_() for one in self._trained.values()]
        optim = setup.optim
        self._optimizer = torch.optim.AdamW(
            self._parts, optim.learning_rate, (optim.beta1, optim.beta2), optim.epsilon, optim.weight_decay, fused=True
        )
        self._files = StateFiles(self._ranks)
        self._step = 0

    def step(self, batch: PackedBatch) -> StepMetrics:
        """Take one optimizer step over all micro-batches of `batch`; this rank computes its sequences."""
        setup, ranks = self._setup, self._ranks
        self._set_training(True)
        scale = 1 / step_weight(self._model.objective, batch)
        losses = torch.zeros(1 + len(self._model.objective.metrics), device=self._device)
        for index in range(len(batch.tokens)):
            # Trained in full, gradients are as large as the model: they are divided at once rather than added up whole.
            sync_gradients(self._model, now=setup.lora.full or index == len(batch.tokens) - 1)
            parts = self._losses(batch, index)
            (parts[LOSS] * scale).backward()
            losses += torch.stack([part.detach() for part in parts.values()])
        gradients = self._gradients()
        sums = ranks.sum_over_all(torch.cat([losses / ranks.shape.tp, self._squares(gradients)[None]]))
        norm = sums[-1].sqrt()
        if setup.optim.clip_norm:  # As optax's `clip_by_global_norm`.
            scale_all(gradients, (setup.optim.clip_norm / norm).clamp(max=1.0))
        rate = learning_rate(self._step, setup.optim)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        for part, gradient in zip(self._parts, gradients, strict=True):
            part.grad = gradient
        self._optimizer.step()
        self._step += 1
        for one, part in zip(self._trained.values(), self._parts, strict=True):
            one.parameter.grad = part.grad = None  # Both: what is left would take memory through the next step.
        loss, *others, grad_norm = torch.cat([sums[:-1] * scale, norm[None]]).tolist()  # The only wait for the device in a step.
        return StepMetrics(loss, grad_norm, rate, batch.loss_tokens, self._named(others))

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        """Loss of `batch` without a step."""
        self._set_training(False)
        scale = 1 / step_weight(self._model.objective, batch)
        with torch.no_grad():
            parts = [torch.stack(list(self._losses(batch, index).values())) for index in range(len(batch.tokens))]
        drop_gathered(self._model)
        loss, *others = (self._ranks.sum_over_all(torch.stack(parts).sum(0) / self._ranks.shape.tp) * scale).tolist()
        return StepMetrics(loss, 0.0, 0.0, batch.loss_tokens, self._named(others))

    def _named(self, values: Sequence[float]) -> dict[str, float]:
        return dict(zip(self._model.objective.metrics, values, strict=True))

    def _set_training(self, on: bool) -> None:
        if self._model.training != on:  # It walks over all modules, which shows in the steps of small models.
            self._model.train(on)

    def _losses(self, batch: PackedBatch, index: int) -> dict[str, Tensor]:
        """What the objective sums over this rank's sequences of a micro-batch, `loss` first; they may have no target."""
        # Weights that are all trained are float32; autocast is what computes with them in the precision asked for.
        casts = self._setup.lora.full and self._dtype != torch.float32
        micro = self._micro_batch(batch, index)
        with torch.autocast(self._device.partition(":")[0], self._dtype if casts else torch.bfloat16, enabled=casts):
            losses: dict[str, Tensor] = self._model(micro)
        return losses

    def _micro_batch(self, batch: PackedBatch, index: int) -> MicroBatch:
        """This rank's sequences of micro-batch `index`, ready for the model."""
        width = batch.widths[index] if batch.widths else None
        own = (index, self._ranks.sequences(batch.tokens.shape[1]), slice(width))
        arrays = {name: getattr(batch, name)[own] for name in ARRAYS}
        tokens, positions = arrays["tokens"], arrays["positions"]
        if self._model.masks is not None and self._model.training:
            self._model.masks.start(self._step, arrays["row_keys"], positions, self._device)
        segments = arrays["segment_ids"]
        inputs = model_inputs(self._setup.attention, self._architecture, self._dtype, tokens, positions, segments, self._device)
        targets = np.flatnonzero(arrays["loss_mask"])
        chosen = torch.from_numpy(tokens.reshape(-1)[targets].astype(np.int64)).to(self._device)
        return MicroBatch(inputs, chosen, torch.from_numpy(targets - 1).to(self._device), arrays)

    def _gradients(self) -> list[Tensor]:
        """This rank's parts of the gradients, summed over all ranks that hold the same part."""
        parameters = {name: one.parameter for name, one in self._trained.items()}
        sum_partial_gradients(parameters, self._ranks.group("tp"))
        gradients = [local(_gradient(parameter)) for parameter in parameters.values()]
        self._ranks.sum_over_replicas(gradients)
        return gradients

    def _squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """This rank's share of the squared global gradient norm; ranks that hold the same part share it evenly."""
        norms = torch.stack(norms_of(gradients))
        copies = torch.tensor([float(one.part.copies) for one in self._trained.values()], device=self._device)
        return (norms.square() / copies).sum()

    def agree(self, flag: bool) -> bool:
        """Whether `flag` is True in any process."""
        return self._ranks.any(flag)

    def save_state(self, folder: Path) -> Saving:
        """Copy trained arrays, optimizer state and step count and write them into an existing empty folder in the background."""
        return self._files.save(self._step, self.state(), folder)

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote, on this mesh or another."""
        self._step = self._files.load(self.state(), folder)
        for part in self._parts:
            self._optimizer.state[part]["step"].fill_(self._step)

    def state(self) -> dict[str, Stored]:
        """All tensors that training continues from, by name; those of the optimizer exist from here on."""
        state: dict[str, Stored] = {}
        for (name, one), part in zip(self._trained.items(), self._parts, strict=True):
            moments: dict[str, Any] = self._optimizer.state[part]
            if not moments:
                moments["step"] = torch.zeros((), device=self._device)
                moments |= {moment: torch.zeros_like(part, requires_grad=False) for moment in _MOMENTS}
            for kind, values in {"weight": part.detach(), **{moment: moments[moment] for moment in _MOMENTS}}.items():
                state[f"{kind}/{name}"] = Stored(values, one.parameter)
        return state

    def export(self) -> dict[str, FloatArray]:
        """Trained arrays, whole, float32 copies: LoRA's by PEFT name, or all weights by the checkpoint's names."""
        whole = {name: _whole(one.parameter) for name, one in self._trained.items()}
        if self._setup.lora.full:  # Buffers of the checkpoint, which transformers does not train, belong to the whole.
            whole |= checkpoint_buffers(self._model.base, self._architecture)
        return {name: tensor.float().cpu().numpy().copy() for name, tensor in whole.items()}


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        raise AssertionError("a trained parameter has no gradient: it takes no part in the loss")
    return parameter.grad


def _whole(parameter: Tensor) -> Tensor:
    return parameter.detach().full_tensor() if isinstance(parameter, DTensor) else parameter.detach()
