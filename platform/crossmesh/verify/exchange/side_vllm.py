"""The vLLM side of `check=exchange`: greedy tokens of one model without adapter, with its serving form, and with its plain form."""

from pathlib import Path
from typing import Any

import numpy as np
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from crossmesh.serve.adapters import serving_rank
from crossmesh.serve.vllm.settings import CPU_LORA_WORKER, LORA_MODULES, check_no_experts
from crossmesh.verify.measure import Progress
from crossmesh.verify.process import Request, answer_measurement

_CACHE_BYTES = 1 << 28
_KNOWN_TOKENS = 1024
"""Size of a vocabulary up to which every token's log-probability is asked for; of a larger one, the `_MOST_LIKELY`."""
_MOST_LIKELY = 32


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Serve `model` with the adapter folders of `forms` (by name) and continue the `tokens.npy` [B, T] in `files` by `new` tokens.

    Writes `vllm_<form>.npy` [B, T + new] for each form and `base`, and for the prompts the log-probabilities `vllm_<form>_values.npy`
    [B, T-1, k] of the tokens `vllm_<form>_ids.npy`. Raises `InputError` for a model with experts.
    """
    check_no_experts(Path(request["model"]))
    files, forms, new = Path(request["files"]), request["forms"], request["new"]
    tokens = np.load(files / "tokens.npy")
    known = request["vocab"] if request["vocab"] <= _KNOWN_TOKENS else _MOST_LIKELY
    engine = LLM(
        request["model"],
        dtype=request["dtype"],
        enforce_eager=True,
        max_model_len=tokens.shape[1] + new,
        max_num_seqs=len(tokens),
        kv_cache_memory_bytes=_CACHE_BYTES,
        enable_lora=True,
        lora_target_modules=list(LORA_MODULES),
        max_loras=1,
        max_lora_rank=serving_rank(request["rank"]),
        max_logprobs=known,
        worker_cls=CPU_LORA_WORKER,
        generation_config="vllm",
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, prompt_logprobs=known)
    prompts: Any = [{"prompt_token_ids": row.tolist()} for row in tokens]
    for index, (form, folder) in enumerate({"base": "", **forms}.items()):
        progress("forms on vLLM", index, 1 + len(forms))
        lora = LoRARequest(form, index, folder) if folder else None
        answers = engine.generate(prompts, sampling, lora_request=lora, use_tqdm=False)
        made = np.array([one.outputs[0].token_ids for one in answers], np.int32)
        np.save(files / f"vllm_{form}.npy", np.concatenate([tokens, made], axis=1))
        ids, values = _most_likely(answers, known)
        np.save(files / f"vllm_{form}_ids.npy", ids)
        np.save(files / f"vllm_{form}_values.npy", values)
    return {"log_probabilities": known}


def _most_likely(answers: Any, known: int) -> tuple[Any, Any]:
    """Ids and log-probabilities of the `known` most likely tokens at every position of the prompts but the first."""
    positions = [
        [sorted(position.items(), key=lambda entry: -entry[1].logprob)[:known] for position in one.prompt_logprobs[1:]] for one in answers
    ]
    ids = np.array([[[token for token, _ in position] for position in row] for row in positions], np.int32)
    return ids, np.array([[[entry.logprob for _, entry in position] for position in row] for row in positions], np.float32)


if __name__ == "__main__":
    answer_measurement(main)
