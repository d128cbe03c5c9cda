"""The torch backend: a transformers model, PEFT's LoRA layers and torch's AdamW behind the `Backend` protocol.

One optimizer step at a time; looping, logging and the checkpoint policy are the loop's. Two things make a step cheap without
changing its result: padding that a whole micro-batch shares is cut off, and logits are made only where a token carries loss.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from crossmesh.adapters.initial import LoraShape, initial_lora
from crossmesh.data.batches import PackedBatch
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.files import read_json, write_text
from crossmesh.models.families import read_architecture
from crossmesh.models.hf_torch import hidden_states, load_base, logits
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.train.backend import Saving, StepMetrics, TrainingSetup
from crossmesh.train.schedule import learning_rate

FloatArray = npt.NDArray[np.float32]

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE_FILE = "state.safetensors"
_STEP_FILE = "step.json"


class TorchBackend:
    """`Backend` on one torch device: the first CUDA device where there is one, otherwise the CPU."""

    def init(self, setup: TrainingSetup) -> None:
        """Load the base, put the seed's initial LoRA values in, make the optimizer."""
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        if ranks > 1:
            raise InputError(f"{setup.mesh} asks the torch backend for {ranks} ranks. Allowed: 1 device. Set hardware=cpu.")
        self._setup = setup
        self.rank = 0
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._architecture = read_architecture(setup.model_folder)
        self._base = load_base(setup.model_folder, setup.model.dtype, self._device)
        self._arrays = self._add_adapter(setup)
        optim = setup.optim
        self._optimizer = torch.optim.AdamW(
            self._arrays.values(), optim.learning_rate, (optim.beta1, optim.beta2), optim.epsilon, optim.weight_decay, fused=True
        )
        self._step = 0

    def _add_adapter(self, setup: TrainingSetup) -> dict[str, Tensor]:
        """Put LoRA layers into the base and return their parameters by PEFT name, holding the seed's initial values."""
        targets = expand_targets(self._architecture, setup.lora.targets)
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=setup.lora.rank,
            lora_alpha=setup.lora.alpha,
            lora_dropout=setup.lora.dropout,
            target_modules=list(hf_module_names(targets)),
            bias="none",
        )
        # Kept in float32 whatever the base's precision (`autocast_adapter_dtype`).
        adapted = get_peft_model(self._base, config, autocast_adapter_dtype=True)
        arrays = {
            name.replace(".default.weight", ".weight"): parameter
            for name, parameter in adapted.named_parameters()
            if parameter.requires_grad
        }
        shapes = [LoraShape(target.hf, target.in_features, target.out_features) for target in targets]
        self._load(
            arrays, {name: torch.from_numpy(array) for name, array in initial_lora(shapes, setup.lora.rank, setup.lora.seed).items()}
        )
        return dict(sorted(arrays.items()))

    def step(self, batch: PackedBatch) -> StepMetrics:
        """Take one optimizer step over all micro-batches of `batch`."""
        setup = self._setup
        if setup.lora.dropout:
            # Dropout follows from seed and step alone, so that a resumed run draws what an uninterrupted one would.
            torch.manual_seed(((setup.lora.seed << 32) + self._step) % 2**63)
        self._base.train()
        self._optimizer.zero_grad(set_to_none=True)
        nll_sum = 0.0
        for index in range(len(batch.tokens)):
            nll = self._nll(batch, index)
            if nll is not None:
                (nll / batch.loss_tokens).backward()
                nll_sum += nll.item()
        grad_norm = self._clip(setup.optim.clip_norm)
        rate = learning_rate(self._step, setup.optim)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._step += 1
        return StepMetrics(self._mean(nll_sum, batch), grad_norm, rate, batch.loss_tokens)

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        """Loss of `batch` without a step."""
        self._base.eval()
        with torch.inference_mode():
            parts = [self._nll(batch, index) for index in range(len(batch.tokens))]
        return StepMetrics(self._mean(sum(nll.item() for nll in parts if nll is not None), batch), 0.0, 0.0, batch.loss_tokens)

    def _nll(self, batch: PackedBatch, index: int) -> Tensor | None:
        """Summed negative log-likelihood of the micro-batch's loss tokens; None when it has none."""
        mask = batch.loss_mask[index]
        if not mask.any():
            return None
        used = int(np.flatnonzero((batch.segment_ids[index] > 0).any(axis=0)).max()) + 1
        tokens, positions, segments = (
            torch.from_numpy(array[index, :, :used].astype(np.int64)).to(self._device)
            for array in (batch.tokens, batch.positions, batch.segment_ids)
        )
        hidden = hidden_states(self._base, self._architecture, tokens, positions, segments)
        row, column = (torch.from_numpy(axis).to(self._device) for axis in np.nonzero(mask))
        # The token at `column` is predicted from the position before it.
        scores = logits(self._base, self._architecture, hidden[row, column - 1])
        return cross_entropy(scores, tokens[row, column], reduction="sum")

    def _mean(self, nll_sum: float, batch: PackedBatch) -> float:
        if batch.loss_tokens == 0:
            raise CrossmeshError("A batch has no token that carries loss. Check data.max_length and that rows have assistant turns.")
        return nll_sum / batch.loss_tokens

    def _clip(self, limit: float) -> float:
        """Return the global gradient norm; scale gradients down to `limit` when it is over it (optax's `clip_by_global_norm`)."""
        gradients = [array.grad for array in self._arrays.values() if array.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if limit and norm > limit:
            torch._foreach_mul_(gradients, limit / norm)
        return float(norm)

    def agree(self, flag: bool) -> bool:
        """Whether `flag` is True in any process."""
        return flag

    def save_state(self, folder: Path) -> Saving:
        """Write adapter, optimizer state and step count into an existing empty folder, bit-exact."""
        tensors = {f"adapter/{name}": array.detach() for name, array in self._arrays.items()}
        for name, array in self._arrays.items():
            state = self._optimizer.state.get(array, {})
            tensors |= {f"{moment}/{name}": state[moment] for moment in _MOMENTS if state}
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / _STATE_FILE)
        write_text(folder / _STEP_FILE, json.dumps({"step": self._step}))
        return lambda: None

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        tensors = load_file(folder / _STATE_FILE)
        self._step = int(read_json(folder / _STEP_FILE)["step"])
        self._load(self._arrays, {name.removeprefix("adapter/"): array for name, array in tensors.items() if name.startswith("adapter/")})
        self._optimizer.state.clear()
        if self._step:
            for name, array in self._arrays.items():
                state: dict[str, Any] = {moment: tensors[f"{moment}/{name}"].to(self._device) for moment in _MOMENTS}
                self._optimizer.state[array] = state | {"step": torch.tensor(float(self._step), device=self._device)}

    def export(self) -> dict[str, FloatArray]:
        """LoRA arrays by PEFT name, float32 copies."""
        return {name: array.detach().cpu().numpy().copy() for name, array in self._arrays.items()}

    @staticmethod
    def _load(parameters: dict[str, Tensor], values: dict[str, Tensor]) -> None:
        """Overwrite `parameters` in place; both must have the same names and shapes, float32."""
        if parameters.keys() != values.keys():
            differing = sorted(parameters.keys() ^ values.keys())
            raise CrossmeshError(f"The adapter in the model and the one to load differ in {len(differing)} arrays, e.g. {differing[0]}.")
        with torch.no_grad():
            for name, parameter in parameters.items():
                if parameter.shape != values[name].shape or parameter.dtype != torch.float32:
                    raise CrossmeshError(f"{name}: {parameter.dtype} {tuple(parameter.shape)} cannot take {tuple(values[name].shape)}.")
                parameter.copy_(values[name])
