"""vLLM's own scheduler, driven without an engine: requests and limits as JSON on stdin, when each is answered as JSON on stdout.

A step takes one second of a clock that only counts steps. No model runs: the scheduler is told a token for every sequence that has one due.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    """Schedule `requests` (arrival, prompt, output) until all are answered."""
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    asked = json.load(sys.stdin)
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    scheduler = _scheduler(asked)
    arrivals = [(float(arrival), prompt, output) for arrival, prompt, output in asked["requests"]]
    requests = [
        Request(str(index), [7] * prompt, SamplingParams(max_tokens=output, ignore_eos=True), None)
        for index, (_, prompt, output) in enumerate(arrivals)
    ]
    now, come, done = 0.0, 0, 0
    first, end, tokens = [-1.0] * len(requests), [-1.0] * len(requests), []
    while done < len(requests):
        if not scheduler.has_unfinished_requests():
            now = max(now, arrivals[come][0])
        while come < len(requests) and arrivals[come][0] <= now:
            scheduler.add_request(requests[come])
            come += 1
        planned = scheduler.schedule()
        names = list(planned.num_scheduled_tokens)
        due = [requests[int(name)].num_computed_tokens >= requests[int(name)].num_tokens for name in names]
        said = ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, [[9] if one else [] for one in due])
        scheduler.update_from_output(planned, said)
        if not names:
            continue
        now += 1
        tokens.append(sum(planned.num_scheduled_tokens.values()))
        for name, one in zip(names, due, strict=True):
            index = int(name)
            if one and first[index] < 0:
                first[index] = now
            if requests[index].is_finished():
                end[index], done = now, done + 1
    preempted = [request.num_preemptions for request in requests]
    sys.stdout.write(json.dumps({"first": first, "end": end, "tokens": tokens, "preemptions": preempted}) + "\n")


def _scheduler(asked: dict[str, Any]) -> Any:
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    model = ModelConfig(model=asked["model"], dtype="float32", seed=0, max_model_len=asked["max_model_len"], skip_tokenizer_init=True)
    cache = CacheConfig(block_size=asked["block"], enable_prefix_caching=False)
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=asked["sequences"],
            max_num_batched_tokens=asked["step_tokens"],
            max_model_len=asked["max_model_len"],
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
    )
    group = KVCacheGroupSpec(["layer"], FullAttentionSpec(block_size=asked["block"], num_kv_heads=1, head_size=1, dtype=torch.float32))
    # One block is the scheduler's own, for tokens without a place.
    blocks = KVCacheConfig(num_blocks=asked["blocks"] + 1, kv_cache_tensors=[], kv_cache_groups=[group])
    cache.num_gpu_blocks = blocks.num_blocks
    return Scheduler(config, blocks, StructuredOutputManager(config), block_size=asked["block"])


if __name__ == "__main__":
    main()
