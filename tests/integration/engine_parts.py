"""One model with one adapter on three engines, for `test_three_engines.py`: `python engine_parts.py torch|jax|vllm FOLDER`.

FOLDER holds `model`, `adapter`, `served` (the serving form of the adapter) and `prompts.npy` [B, T]. Each part writes `PART_tokens.npy`
[B, NEW], its greedy continuation; torch and jax write `PART_logits.npy` [B, T, vocab] of the prompts too. An engine a process: they do not
like one another's company.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

NEW = 32


def greedy(logits_of: Callable[[np.ndarray], np.ndarray], prompts: np.ndarray) -> np.ndarray:
    """The most likely NEW tokens, each from a whole forward pass over [B, T + NEW]: no cache that could hide a fault."""
    length = prompts.shape[1]
    tokens = np.concatenate([prompts, np.zeros((len(prompts), NEW), np.int32)], axis=1)
    for place in range(length, length + NEW):
        tokens[:, place] = logits_of(tokens)[:, place - 1].argmax(-1)
    return tokens[:, length:]


def torch_part(folder: Path, prompts: np.ndarray) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def logits_of(model: torch.nn.Module, tokens: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(input_ids=torch.from_numpy(tokens.astype(np.int64)), use_cache=False).logits.numpy()

    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    np.save(folder / "base_logits.npy", logits_of(base, prompts))
    adapted = PeftModel.from_pretrained(base, folder / "adapter").eval()
    np.save(folder / "torch_logits.npy", logits_of(adapted, prompts))
    np.save(folder / "torch_tokens.npy", greedy(lambda tokens: logits_of(adapted, tokens), prompts))


def jax_part(folder: Path, prompts: np.ndarray) -> None:
    import jax

    from crossmesh.adapters.convert import to_qwix
    from crossmesh.adapters.peft_format import read_adapter
    from crossmesh.hardware.mesh import MeshShape
    from crossmesh.models import tunix_jax
    from crossmesh.models.families import read_architecture
    from crossmesh.models.layers_jax import Settings
    from crossmesh.models.lora import lora_modules
    from crossmesh.models.targets import expand_targets
    from crossmesh.spec.training import LORA_TARGETS, LoraSpec

    architecture = read_architecture(folder / "model")
    targets = expand_targets(architecture, LORA_TARGETS)
    arrays, config = read_adapter(folder / "adapter")
    lora = LoraSpec(rank=config.rank, alpha=config.alpha)
    structure = tunix_jax.build(architecture, Settings(), lora, lora_modules(lora, architecture))
    mesh = tunix_jax.device_mesh(MeshShape(1, 1, 1))
    _, base = tunix_jax.load_weights(structure, folder / "model", mesh)
    lora = tunix_jax.put_trained(structure, to_qwix(arrays, targets), mesh)
    compute = jax.jit(lambda *values: tunix_jax.all_logits(structure, *values))

    def logits_of(tokens: np.ndarray) -> np.ndarray:
        positions = np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape)
        return np.asarray(compute(lora, base, tokens, positions, np.ones_like(tokens)))

    np.save(folder / "jax_logits.npy", logits_of(prompts))
    np.save(folder / "jax_tokens.npy", greedy(logits_of, prompts))


def vllm_part(folder: Path, prompts: np.ndarray) -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    from crossmesh.serve.engine import CPU_LORA_WORKER, LORA_MODULES

    engine = LLM(
        str(folder / "model"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        enable_lora=True,
        max_loras=1,
        max_lora_rank=8,
        lora_target_modules=list(LORA_MODULES),
        worker_cls=CPU_LORA_WORKER,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)
    answers = engine.generate(
        [{"prompt_token_ids": row.tolist()} for row in prompts],
        sampling,
        lora_request=LoRARequest("adapter", 1, str(folder / "served")),
        use_tqdm=False,
    )
    np.save(folder / "vllm_tokens.npy", np.array([answer.outputs[0].token_ids for answer in answers], np.int32))


if __name__ == "__main__":
    {"torch": torch_part, "jax": jax_part, "vllm": vllm_part}[sys.argv[1]](Path(sys.argv[2]), np.load(Path(sys.argv[2]) / "prompts.npy"))
