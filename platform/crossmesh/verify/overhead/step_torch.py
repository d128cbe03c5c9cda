"""The torch backend's step beside a bare transformers and PEFT loop and TRL's SFTTrainer, on the same packed batches.

TRL owns its loop, so the others take their turns inside it, between two of its steps. All start from the same adapter, and that they
see the same losses says that they do the same work.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from crossmesh.config.training import LoraSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.verify.differences import loss_differences
from crossmesh.verify.measure import Progress, ratio
from crossmesh.verify.peers.trl_torch import adapted, labels, trainer
from crossmesh.verify.peers.work import DECAY, RATE, packed_work, ready_backend
from crossmesh.verify.process import Request, answer_measurement


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Take turns for `rounds` steps of `limit` tokens on the model in `folder`."""
    folder, warm_up, rounds = Path(request["folder"]), request["warm_up"], request["rounds"]
    spec, batches = packed_work("torch", folder, request["limit"], warm_up + rounds)
    backend = ready_backend(spec, folder, Path(request["cache"]))
    bare = _bare_loop(folder, spec.lora)
    turns = _Turns({"ours": lambda batch: backend.step(batch).loss, "transformers_peft": bare}, batches, progress)
    losses = _train_with_trl(folder, spec.lora, batches, Path(request["scratch"]), turns)
    found = {**turns.losses, "trl": losses}
    seconds = {name: values[warm_up:] for name, values in turns.seconds.items()}
    peers = [name for name in seconds if name != "ours"]
    return {
        "ratios": {name: ratio(seconds[name], seconds["ours"]).figures() for name in peers},
        "loss_difference": {name: max(loss_differences(found[name], found["ours"])) for name in peers},
        "seconds": seconds,
    }


class _Turns(TrainerCallback):
    """After each step of TRL's trainer the others take theirs; the order alternates."""

    def __init__(self, others: dict[str, Callable[[PackedBatch], float]], batches: list[PackedBatch], progress: Progress) -> None:
        self._others = others
        self._batches = batches
        self._progress = progress
        self._released = 0.0
        self.seconds: dict[str, list[float]] = {name: [] for name in ("trl", *others)}
        self.losses: dict[str, list[float]] = {name: [] for name in others}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._released = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds["trl"].append(time.perf_counter() - self._released)
        done = len(self.seconds["trl"])
        names = list(self._others)
        for name in names if done % 2 else reversed(names):
            start = time.perf_counter()
            self.losses[name].append(self._others[name](self._batches[done - 1]))
            self.seconds[name].append(time.perf_counter() - start)
        self._progress("steps of each", done, len(self._batches))
        self._released = time.perf_counter()


def _bare_loop(folder: Path, lora: LoraSpec) -> Callable[[PackedBatch], float]:
    """A step as one would write it: labels in, loss out; transformers keeps rows apart whose positions restart."""
    model = adapted(folder, lora).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=DECAY, fused=True)

    def step(batch: PackedBatch) -> float:
        tokens, targets, positions = (torch.from_numpy(array)[None] for array in _row(batch))
        loss = model(input_ids=tokens, labels=targets, position_ids=positions, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def _row(batch: PackedBatch) -> tuple[Any, Any, Any]:
    """Tokens, labels and positions of the one sequence of `batch`, without its padding."""
    real = batch.segment_ids[0, 0] > 0
    tokens = batch.tokens[0, 0, real].astype(np.int64)
    return tokens, labels(tokens, batch.loss_mask[0, 0, real]), batch.positions[0, 0, real].astype(np.int64)


def _train_with_trl(folder: Path, lora: LoraSpec, batches: list[PackedBatch], scratch: Path, turns: TrainerCallback) -> list[float]:
    """Train on `batches` with SFTTrainer, its rows already packed; returns the losses it logs."""
    peer = trainer(folder, lora, [_example(batch) for batch in batches], scratch, len(batches), [turns], padding_free=True)
    peer.train()
    return [entry["loss"] for entry in peer.state.log_history if "loss" in entry]


def _example(batch: PackedBatch) -> dict[str, Any]:
    tokens, targets, positions = _row(batch)
    starts = [*np.flatnonzero(positions == 0).tolist(), len(tokens)]
    return {"input_ids": tokens.tolist(), "labels": targets.tolist(), "seq_lengths": np.diff(starts).tolist()}


if __name__ == "__main__":
    answer_measurement(main)
