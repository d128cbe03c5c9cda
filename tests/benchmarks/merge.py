"""How long a merge takes and what it holds in memory, beside copying the same bytes and beside PEFT, in one run.

`python tests/benchmarks/merge.py [--gb 4.2] [--rank 64] [--rounds 3] [--no-peft] [--folder DIR]` makes a random bfloat16 Llama of that
size in shards and an adapter of all its projections, then runs in turn, each in a process of its own, with the base in the page cache
and nothing left to be written:

- `baseline`: read, digest, write and fsync the bytes of the checkpoint, one thread;
- `ours`: the merge (which digests the base as well as the result);
- `peft`: from_pretrained, merge_and_unload, save_pretrained (no digest, no fsync).

Times are without imports. The last line on stdout is JSON with all times, ratios of medians, and memory beyond what imports took.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HIDDEN, FFN, HEADS, VOCAB = 2048, 5504, 16, 1024
SHARDS = 4
PROJECTIONS = {
    **{f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"},
    **{f"mlp.{name}_proj": (FFN, HIDDEN) for name in ("gate", "up")},
    "mlp.down_proj": (HIDDEN, FFN),
}
"""Outputs and inputs of the matrices of a layer."""


def make(folder: Path, size: float, rank: int) -> None:
    """Write the checkpoint, shard by shard, and the adapter."""
    import numpy as np
    from safetensors.numpy import save_file

    from checkpoint_folders import BFLOAT16, random_array, write_peft

    random = np.random.default_rng(0)
    layers = max(1, round(size / sum(2 * out * into for out, into in PROJECTIONS.values())))
    shards = min(SHARDS, layers)
    base = folder / "base"
    base.mkdir()
    index, pairs = {}, {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        arrays = {}
        for layer in range(layers * shard // shards, layers * (shard + 1) // shards):
            start = f"model.layers.{layer}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                arrays[f"{start}{norm}.weight"] = np.ones(HIDDEN, BFLOAT16)
            for projection, (out, into) in PROJECTIONS.items():
                arrays[f"{start}{projection}.weight"] = random_array(random, (out, into), BFLOAT16, 0.02)
                pairs[start + projection] = (random_array(random, (rank, into), scale=0.02), random_array(random, (out, rank), scale=0.02))
        if shard == 0:
            arrays["model.embed_tokens.weight"] = random_array(random, (VOCAB, HIDDEN), BFLOAT16, 0.02)
        if shard == shards - 1:
            arrays["model.norm.weight"] = np.ones(HIDDEN, BFLOAT16)
            arrays["lm_head.weight"] = random_array(random, (VOCAB, HIDDEN), BFLOAT16, 0.02)
        save_file(arrays, base / name, metadata={"format": "pt"})
        index |= dict.fromkeys(arrays, name)
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": index}))
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": layers,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    (base / "config.json").write_text(json.dumps(config))
    write_peft(folder / "adapter", pairs, r=rank, lora_alpha=2 * rank)


def baseline(folder: Path, out: Path) -> Callable[[], None]:
    """Copy every file with its digest, durably."""

    def run() -> None:
        out.mkdir()
        for file in sorted((folder / "base").iterdir()):
            digest = hashlib.sha256()
            with file.open("rb", buffering=0) as source, (out / file.name).open("wb", buffering=0) as sink:
                while block := source.read(1 << 20):
                    digest.update(block)
                    sink.write(block)
                os.fsync(sink.fileno())

    return run


def ours(folder: Path, out: Path) -> Callable[[], None]:
    """Merge with crossmesh."""
    from crossmesh.adapters.merge import merge
    from crossmesh.adapters.peft_format import open_adapter
    from crossmesh.models.weights.stores import LocalStore

    def run() -> None:
        merge(open_adapter(folder / "adapter"), LocalStore(folder / "base"), out, lambda done, total: None)

    return run


def peft(folder: Path, out: Path) -> Callable[[], None]:
    """Merge with PEFT."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def run() -> None:
        model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)
        PeftModel.from_pretrained(model, folder / "adapter").merge_and_unload().save_pretrained(out)

    return run


METHODS = {"baseline": baseline, "ours": ours, "peft": peft}


def measure(method: str, folder: Path) -> dict[str, float]:
    """Run `method` once in this process; seconds, and bytes of memory beyond what was there before."""
    out = folder / "out"
    run = METHODS[method](folder, out)
    for file in (folder / "base").iterdir():  # The same cache state for all: everything that is read is there.
        with file.open("rb", buffering=0) as stream:
            while stream.read(1 << 20):
                pass
    os.sync()
    before, start, used = _status("VmRSS"), time.perf_counter(), time.process_time()
    run()
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - used,
        "extra_bytes": _status("VmHWM") - before,
    }


def _status(key: str) -> int:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def main() -> None:
    """Make the parts, run the methods in turn and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=4.2)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peft", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where there is room for three times the size")
    parser.add_argument("--measure", choices=sorted(METHODS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(measure(arguments.measure, arguments.folder)) + "\n")
        return
    with tempfile.TemporaryDirectory(prefix="crossmesh-merge-", dir=arguments.folder) as name:
        folder = Path(name)
        make(folder, arguments.gb * 1e9, arguments.rank)
        size = sum(file.stat().st_size for file in (folder / "base").iterdir())
        found: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS if not (arguments.no_peft and method == "peft")}
        for _ in range(arguments.rounds):
            for method, results in found.items():
                command = [sys.executable, __file__, "--measure", method, "--folder", str(folder)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                results.append(json.loads(done.stdout.splitlines()[-1]))
                sys.stderr.write(
                    f"{method}: {results[-1]['seconds']:.2f} s, memory {results[-1]['extra_bytes'] / size:.1%} of the checkpoint\n"
                )
                shutil.rmtree(folder / "out")
    sys.stdout.write(json.dumps(summary(found, size, arguments.rank)) + "\n")


def summary(found: dict[str, list[dict[str, float]]], size: int, rank: int) -> dict[str, Any]:
    """Put the figures together."""
    seconds = {method: [one["seconds"] for one in results] for method, results in found.items()}
    medians = {method: statistics.median(values) for method, values in seconds.items()}
    return {
        "bytes": size,
        "rank": rank,
        "seconds": seconds,
        "cpu_seconds": {method: [one["cpu_seconds"] for one in results] for method, results in found.items()},
        "ours_over_baseline": medians["ours"] / medians["baseline"],
        "ours_over_baseline_worst": max(ours / base for ours, base in zip(seconds["ours"], seconds["baseline"], strict=True)),
        "peft_over_ours": medians["peft"] / medians["ours"] if "peft" in medians else None,
        "extra_memory": {method: max(one["extra_bytes"] for one in results) / size for method, results in found.items()},
    }


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "platform"), str(ROOT / "tests" / "support")]
    main()
