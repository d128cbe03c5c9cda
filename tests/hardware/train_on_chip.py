"""Training on one GPU or on the TPU slice of one host, checked in minutes: `python tests/hardware/train_on_chip.py gpu_1xh100`.

`tpu_v5p_8` and the like for TPUs; `cpu` does the same, tiny, without a chip. Trains a Llama of 135M parameters with random weights for a
few steps with every attention kernel in bfloat16 and once in float32: on a GPU those of the torch backend, and JAX where that is
installed beside torch or in the interpreter that CROSSMESH_PYTHON_TRAIN_JAX names; on a TPU those of JAX, with wider heads. Prints for each
run the median step time, the peak memory beside what weights and optimizer take at least, and how far its losses are from the reference
run's; the last line is JSON, and the exit code is 1 when a run failed or is too far. Every run has a process of its own.
"""

# ruff: noqa: T201

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "platform"))

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import BackendSpec, BatchSpec, DataSpec, HardwareSpec, LoraSpec, ModelSpec, OptimSpec
from crossmesh.environments import environment
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.models.families.registry import read_architecture
from crossmesh.models.targets import all_weights
from crossmesh.models.weights.random_weights import architecture_config, write_random

BOUNDS = {"float32": 1e-3, "bfloat16": 2e-2}
"""Largest relative difference of a step's loss from the float32 reference, by the precision of the run."""
LARGE = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
}
WIDE_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128}
"""What the splash kernel takes."""


@dataclass(frozen=True)
class Case:
    """One run."""

    backend: str
    attention: str
    dtype: str

    @property
    def name(self) -> str:
        """How it is shown."""
        return f"{self.backend} {self.attention} {self.dtype}"


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    hardware: str
    length: int
    sequences: int
    steps: int
    cases: tuple[Case, ...]
    """The first one is the reference."""
    config: Mapping[str, int] = field(default_factory=dict)
    """Of the model, beside that of tiny_llama; empty: that itself."""


_ON_GPU = (
    Case("torch", "plain", "float32"),
    *(Case("torch", kernel, "bfloat16") for kernel in ("plain", "sdpa", "flex", "flash")),
    Case("jax", "plain", "bfloat16"),
)
_ON_TPU = (Case("jax", "plain", "float32"), Case("jax", "plain", "bfloat16"), Case("jax", "splash", "bfloat16"))
_ON_CPU = (Case("torch", "plain", "float32"), Case("torch", "sdpa", "bfloat16"), Case("jax", "plain", "float32"))


def size_of(hardware: str) -> Size:
    """What is trained on a slice of the catalogue."""
    match find_slice(hardware).device:
        case Gpu():
            return Size(hardware, 2048, 4, 12, _ON_GPU, LARGE)
        case Tpu() as device:
            return Size(hardware, 2048, max(8, device.chip_count()), 12, _ON_TPU, {**LARGE, **WIDE_HEADS})
        case _:
            return Size(hardware, 64, 2, 3, _ON_CPU)


def main() -> int:
    """Run every case and print the table."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("hardware", help="the slice of the catalogue that is here; cpu: a tiny model, to see that this runs")
    arguments.add_argument("--only", help="the backend to run (torch or jax); both where they are installed")
    given = arguments.parse_args()
    size = size_of(given.hardware)
    with tempfile.TemporaryDirectory(prefix="cm-hw-") as scratch:
        folder = Path(scratch)
        made = _child("torch", size, folder, "--make", device=Cpu())
        if made:
            sys.exit(f"no model: {made}")
        cases = [case for case in size.cases if given.only in (None, case.backend)]
        results = {case.name: _child(case.backend, size, folder, "--case", *vars(case).values()) for case in cases}
    return _report(results, cases)


def _child(backend: str, size: Size, folder: Path, *arguments: str, device: Device | None = None) -> dict[str, Any]:
    """What a process in the environment of `backend` answers; `error` when it fails."""
    worker = environment(f"train/{backend}", device or find_slice(size.hardware).device)
    command = [worker.python or sys.executable, __file__, "child", size.hardware, str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **worker.variables}, timeout=240, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
    absent = "ModuleNotFoundError" in reason or "is not installed" in reason
    return {"missing" if absent else "error": reason}


def _report(results: dict[str, dict[str, Any]], cases: list[Case]) -> int:
    reference = next((result["losses"] for result in results.values() if "losses" in result), [])
    failed = []
    for case in cases:
        result = results[case.name]
        if "losses" not in result:
            print(f"{case.name:24} {'not here' if 'missing' in result else 'FAILED'}: {result.get('missing', result.get('error'))}")
            failed += [case.name] if "error" in result else []
            continue
        result["difference"] = max(abs(loss - wanted) / wanted for loss, wanted in zip(result["losses"], reference, strict=True))
        speed = f"{result['step_ms']:8.1f} ms/step, {result['tokens_per_s']:9,.0f} tokens/s"
        memory = f"{result['peak_gib']:.2f} GiB at the peak" if result["peak_gib"] else "no GPU memory"
        print(f"{case.name:24} {speed}; {memory}, {result['at_least_gib']:.2f} planned at least; losses {result['difference']:.1e}")
        failed += [case.name] if result["difference"] > BOUNDS[case.dtype] else []
    print(
        json.dumps(
            {"check": "train_on_chip", "passed": not failed, "failed": failed, "bound": BOUNDS, "source": "measured", "figures": results}
        )
    )
    return int(bool(failed))


def child(hardware: str, folder: Path, *arguments: str) -> None:
    """The process of one run: answers with one line of JSON."""
    size = size_of(hardware)
    if arguments[0] == "--make":
        _make(size, folder)
        print("{}")
        return
    case = Case(*arguments[1:])
    print(json.dumps(_measure(case, size, folder)))


def _make(size: Size, folder: Path) -> None:
    """Write the model, and what the JAX backend holds itself against."""
    model = folder / "model"
    model.mkdir()
    if not size.config:
        write_random("tiny_llama@0", model)
    else:
        import torch
        from transformers import AutoModelForCausalLM, LlamaConfig

        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig(**{**architecture_config("tiny_llama"), **size.config})).save_pretrained(model)
    from crossmesh.models.probe import probe_tokens, reference
    from crossmesh.models.weights.fetch import folder_digests

    reference(model, probe_tokens(read_architecture(model).vocab), folder / "cache" / "probes", folder_digests(model).weights_digest)


def _measure(case: Case, size: Size, folder: Path) -> dict[str, Any]:
    import numpy as np

    from crossmesh.data.batches import Row
    from crossmesh.data.packing import StepPlan, build_batch
    from crossmesh.train.backend import TrainingSetup
    from crossmesh.train.worker import make_backend

    model = folder / "model"
    spec = ExperimentSpec(
        model=ModelSpec(weights=str(model), dtype=case.dtype),
        data=DataSpec(max_length=size.length),
        lora=LoraSpec(rank=16),
        optim=OptimSpec(steps=size.steps, learning_rate=1e-3),
        batch=BatchSpec(size.sequences),
        hardware=HardwareSpec(size.hardware),
        backend=BackendSpec(case.backend, attention=case.attention),
    )
    backend = make_backend(spec)
    backend.init(replace(TrainingSetup.of(spec, model, folder / "cache")))
    random = np.random.default_rng(0)
    vocab = read_architecture(model).vocab
    losses, seconds = [], []
    for step in range(size.steps):
        # Two rows a sequence, loss on a fifth of the tokens.
        half = size.length // 2
        rows = [
            Row(f"{step}-{index}", random.integers(5, vocab, half).astype(np.int32), np.arange(half) >= half - half // 5)
            for index in range(2 * size.sequences)
        ]
        every = tuple(range(len(rows)))
        batch = build_batch(StepPlan(every, tuple(every[start : start + 2] for start in every[::2])), rows, size.sequences, size.length, 0)
        start = time.perf_counter()
        losses.append(backend.step(batch).loss)
        seconds.append(time.perf_counter() - start)
    steady = statistics.median(seconds[size.steps // 3 :])
    return {
        "losses": losses,
        "step_ms": 1000 * steady,
        "tokens_per_s": size.sequences * size.length / steady,
        "peak_gib": _peak_bytes(case.backend) / 2**30,
        "at_least_gib": _least_bytes(model, case, spec.lora.rank) / 2**30,
    }


def _peak_bytes(backend: str) -> int:
    """Most bytes that were ever allocated on the GPU; 0 without one."""
    if backend == "torch":
        import torch

        return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else 0
    import jax

    return int((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def _least_bytes(model: Path, case: Case, rank: int) -> int:
    """Bytes of the weights, and of LoRA in float32 four times: itself, its gradient and two moments."""
    architecture = read_architecture(model)
    shapes = [weight.hf_shape for weight in all_weights(architecture)]
    width = 2 if case.dtype == "bfloat16" else 4
    frozen = sum(width * _product(shape) for shape in shapes)
    adapter = sum(rank * sum(shape) for shape in shapes if len(shape) == 2 and architecture.vocab not in shape)
    return frozen + 4 * 4 * adapter


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for length in shape:
        product *= length
    return product


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
    else:
        sys.exit(main())
