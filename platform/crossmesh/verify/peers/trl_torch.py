"""TRL's SFTTrainer as a peer: the same model, adapter, optimizer and rows as ours, its loop its own, its best settings.

It trains in a thread that waits between its turns, so that it can be timed among others in one process.
"""

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from crossmesh.adapters.initial import initial_lora
from crossmesh.config.training import LoraSpec
from crossmesh.data.batches import Row
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.verify.peers.work import DECAY, RATE

IGNORED = -100
"""The label of a token without loss, for transformers."""

Example = dict[str, list[int]]


def adapted(folder: Path, lora: LoraSpec) -> Any:
    """The model with PEFT's LoRA, holding the initial values that ours starts from."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    modules = lora_modules(lora, read_architecture(folder))
    config = LoraConfig(task_type="CAUSAL_LM", r=lora.rank, lora_alpha=lora.alpha, target_modules=[one.target.hf for one in modules])
    model = get_peft_model(model, config)
    initial = initial_lora(modules, lora.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.from_numpy(initial[name.replace(".default.weight", ".weight")]))
    return model


def labels(tokens: Any, mask: Any) -> Any:
    """`tokens` where they carry loss, as transformers wants it."""
    return np.where(mask, tokens, IGNORED)


def example(row: Row) -> Example:
    """`row` as TRL takes it."""
    return {"input_ids": row.tokens.tolist(), "labels": labels(row.tokens, row.loss_mask).tolist()}


def _trl() -> tuple[Any, Any]:
    """The modules `datasets` and `trl`. Raises `InputError` where they are not installed."""
    try:
        import datasets
        import trl
    except ImportError as error:
        raise InputError(
            f"TRL is measured against and cannot be imported ({error}). Install the dev requirements: make install."
        ) from error
    return datasets, trl


def pack_bfd(examples: Sequence[Example], length: int) -> list[Example]:
    """What `SFTConfig(packing=True, packing_strategy="bfd", max_length=length)` makes of rows, in an order without a trend."""
    datasets, trl = _trl()
    packed = trl.pack_dataset(datasets.Dataset.from_list(list(examples)).with_format(None), length, "bfd").to_list()
    return [packed[index] for index in np.random.default_rng(0).permutation(len(packed))]


def trainer(
    folder: Path, lora: LoraSpec, examples: Sequence[Example], scratch: Path, steps: int, callbacks: list[TrainerCallback], **settings: Any
) -> Any:
    """An SFTTrainer over `examples`, in their order; `settings` are those of its `SFTConfig`.

    Raises `InputError` where TRL is not installed.
    """
    datasets, trl = _trl()
    config = trl.SFTConfig(
        output_dir=str(scratch),
        per_device_train_batch_size=1,
        max_steps=steps,
        learning_rate=RATE,
        weight_decay=DECAY,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        max_grad_norm=0.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        train_sampling_strategy="sequential",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **settings,
    )
    return trl.SFTTrainer(
        model=adapted(folder, lora),
        args=config,
        train_dataset=datasets.Dataset.from_list(list(examples)),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=callbacks,
    )


class TrainerInTurns:
    """An SFTTrainer that takes `turn` optimizer steps each time it is called; returns the real tokens that they held."""

    def __init__(self, folder: Path, lora: LoraSpec, examples: Sequence[Example], scratch: Path, turn: int, **settings: Any) -> None:
        # Far more steps than anybody asks for: the thread ends with the process.
        self._trainer = trainer(folder, lora, examples, scratch, 1 << 20, [_Pause(self, turn)], **settings)
        self._examples, self._turn = examples, turn * int(settings.get("gradient_accumulation_steps", 1))
        self._begin = threading.Semaphore(0)
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._taken = 0
        threading.Thread(target=self._train, daemon=True).start()

    def __call__(self) -> int:
        """Take one turn."""
        self._begin.release()
        if (error := self._ended.get()) is not None:
            raise CrossmeshError(f"TRL's trainer failed: {error}") from error
        own = [self._examples[(self._taken + index) % len(self._examples)] for index in range(self._turn)]
        self._taken += self._turn
        return sum(len(example["input_ids"]) for example in own)

    @property
    def losses(self) -> list[float]:
        """Of every optimizer step so far."""
        return [entry["loss"] for entry in self._trainer.state.log_history if "loss" in entry]

    def pause(self) -> None:
        """Let the others have their turns; called by the trainer's own thread."""
        self._ended.put(None)
        self._begin.acquire()

    def _train(self) -> None:
        self._begin.acquire()
        try:
            self._trainer.train()
            self._ended.put(CrossmeshError("it ended before its last turn"))
        except BaseException as error:  # noqa: BLE001 - whoever waits for the turn raises it
            self._ended.put(error)


class _Pause(TrainerCallback):
    """Ends a turn after every so many optimizer steps."""

    def __init__(self, turns: TrainerInTurns, steps: int) -> None:
        self._turns, self._steps = turns, steps

    def on_log(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step % self._steps == 0:
            self._turns.pause()
