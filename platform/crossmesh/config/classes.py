"""What each key of an experiment decides: what is learned, how fast, how a model was evaluated, or nothing but how the job was run.

Every key joins at least one class (a test fails for one that does not); `tests/unit/report/gate/test_unlike.py` changes each of them and
looks where it shows. A key that joins several shows in each, as far as the rest of the spec lets it: `packing.window` decides what is
learned with `packing.mode=stream` only.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

SCIENCE = "science"
"""What is learned: in the science record, by what it comes to (digests, rows, modules), not by how it was said."""
SYSTEM = "system"
"""How fast a training is; what is learned stays the same."""
EVALUATION = "evaluation"
"""How a model was evaluated or a server benchmarked: in the record of the evaluation, the load or the server."""
PROVENANCE = "provenance"
"""How the job was run, where it kept what it made, what it was checked against: named beside a result, forbids no comparison."""
CLASSES = (SCIENCE, SYSTEM, EVALUATION, PROVENANCE)

KEY_CLASSES: Mapping[str, tuple[str, ...]] = {
    "name": (PROVENANCE,),
    "model.family": (SCIENCE, EVALUATION),  # As part of the weights: their config.json says it.
    "model.weights": (SCIENCE, EVALUATION),  # Of a benchmark: what was served.
    "model.dtype": (SCIENCE, EVALUATION),  # `serve.dtype=auto` takes it.
    "model.quantization": (SCIENCE,),
    "data.source": (SCIENCE,),
    "data.split": (SCIENCE,),
    "data.messages_column": (SCIENCE,),
    "data.prompt_column": (SCIENCE,),
    "data.response_column": (SCIENCE,),
    "data.system_prompt": (SCIENCE, EVALUATION),  # Tasks are asked as rows are.
    "data.max_rows": (SCIENCE,),
    "data.max_length": (SCIENCE, SYSTEM),  # By the rows that it drops; by the length of sequences.
    "data.max_dropped": (PROVENANCE,),
    "data.template_date": (SCIENCE,),
    "data.strip_reasoning": (SCIENCE,),
    "data.answer_fence": (SCIENCE,),
    "data.seed": (SCIENCE,),
    "data.rtl.train_rows": (SCIENCE,),
    "data.rtl.heldout_rows": (EVALUATION,),
    "data.rtl.hard_rows": (EVALUATION,),
    "data.rtl.seed": (SCIENCE, EVALUATION),
    "lora.rank": (SCIENCE,),
    "lora.alpha": (SCIENCE,),
    "lora.dropout": (SCIENCE,),
    "lora.targets": (SCIENCE,),
    "lora.use_rslora": (SCIENCE,),
    "lora.rank_pattern": (SCIENCE,),
    "lora.alpha_pattern": (SCIENCE,),
    "lora.seed": (SCIENCE,),
    "lora.adapter": (SCIENCE,),
    "objective.name": (SCIENCE,),
    "objective.options": (SCIENCE,),
    "optim.steps": (SCIENCE,),
    "optim.learning_rate": (SCIENCE,),
    "optim.final_fraction": (SCIENCE,),
    "optim.warmup_steps": (SCIENCE,),
    "optim.weight_decay": (SCIENCE,),
    "optim.beta1": (SCIENCE,),
    "optim.beta2": (SCIENCE,),
    "optim.epsilon": (SCIENCE,),
    "optim.clip_norm": (SCIENCE,),
    "optim.stop_at": (SCIENCE,),
    "batch.size": (SCIENCE, SYSTEM),  # A share of it is the micro-batch.
    "batch.micro": (SYSTEM,),
    "packing.mode": (SCIENCE, SYSTEM),  # `stream` decides which rows a step has.
    "packing.length": (SCIENCE, SYSTEM),
    "packing.window": (SCIENCE,),
    "mesh.dcn": (SYSTEM,),
    "mesh.min_dcn": (PROVENANCE,),  # The steps say on how many slices they were taken.
    "mesh.data": (SYSTEM,),
    "mesh.fsdp": (SYSTEM,),
    "mesh.tp": (SYSTEM,),
    "hardware.name": (SYSTEM, EVALUATION),
    "hardware.cpu_devices": (SYSTEM,),
    "hardware.catalogue": (PROVENANCE,),
    "backend.name": (SYSTEM,),
    "backend.remat": (SYSTEM,),
    "backend.compile": (SYSTEM,),
    "backend.attention": (SYSTEM,),
    "serve.name": (PROVENANCE,),
    "serve.host": (PROVENANCE,),
    "serve.port": (PROVENANCE,),
    "serve.tls_cert": (PROVENANCE,),
    "serve.tls_key": (PROVENANCE,),
    "serve.task": (EVALUATION,),
    "serve.adapters": (EVALUATION,),
    "serve.max_loras": (EVALUATION,),
    "serve.max_model_len": (EVALUATION,),
    "serve.max_num_seqs": (EVALUATION,),
    "serve.max_num_batched_tokens": (EVALUATION,),
    "serve.dtype": (EVALUATION,),
    "serve.kv_cache_dtype": (EVALUATION,),
    "serve.kv_cache_gib": (EVALUATION,),
    "serve.gpu_memory_utilization": (EVALUATION,),
    "serve.tp": (EVALUATION,),
    "serve.pp": (EVALUATION,),
    "serve.replicas": (EVALUATION,),
    "serve.max_replicas": (EVALUATION,),
    "serve.target_ongoing_requests": (EVALUATION,),
    "serve.scale_down_s": (EVALUATION,),
    "serve.chunked_prefill": (EVALUATION,),
    "serve.prefix_caching": (EVALUATION,),
    "serve.tool_parser": (EVALUATION,),
    "serve.reasoning_parser": (EVALUATION,),
    "serve.speculative": (EVALUATION,),
    "serve.speculative_tokens": (EVALUATION,),
    "serve.draft_model": (EVALUATION,),
    "serve.disaggregated": (EVALUATION,),
    "serve.compile_cache": (PROVENANCE,),
    "serve.max_lora_rank": (EVALUATION,),
    "serve.seed": (EVALUATION,),
    "serve.api_key_env": (PROVENANCE,),
    "serve.allow_anonymous": (PROVENANCE,),
    "serve.start_timeout_s": (PROVENANCE,),
    "serve.request_timeout_s": (EVALUATION,),
    "serve.max_queue": (EVALUATION,),
    "serve.log_prompts": (PROVENANCE,),
    "bench.load": (EVALUATION,),
    "bench.options": (EVALUATION,),
    "bench.qps": (EVALUATION,),
    "bench.burstiness": (EVALUATION,),
    "bench.concurrency": (EVALUATION,),
    "bench.trace": (EVALUATION,),
    "bench.time_scale": (EVALUATION,),
    "bench.length_scale": (EVALUATION,),
    "bench.prompt_tokens": (EVALUATION,),
    "bench.output_tokens": (EVALUATION,),
    "bench.requests": (EVALUATION,),
    "bench.seconds": (EVALUATION,),
    "bench.repeats": (PROVENANCE,),  # Shown by the interval.
    "bench.warmup": (EVALUATION,),
    "bench.cache": (EVALUATION,),
    "bench.seed": (EVALUATION,),
    "bench.slo_ttft_ms": (EVALUATION,),
    "bench.slo_tpot_ms": (EVALUATION,),
    "bench.slo_e2e_ms": (EVALUATION,),
    "bench.slo_share": (EVALUATION,),
    "bench.search": (PROVENANCE,),  # Which cells are measured; each says its load.
    "bench.url": (EVALUATION,),  # Of a server that does not say what it is.
    "bench.api_key_env": (PROVENANCE,),
    "bench.model": (EVALUATION,),
    "bench.tokenizer": (PROVENANCE,),
    "bench.against": (PROVENANCE,),
    "bench.report": (PROVENANCE,),
    "eval.task": (EVALUATION,),
    "eval.path": (EVALUATION,),  # By what it holds.
    "eval.success_text": (EVALUATION,),
    "eval.variant": (EVALUATION,),
    "eval.tasks": (EVALUATION,),
    "eval.only": (PROVENANCE,),
    "eval.url": (EVALUATION,),  # Of a server that does not say what it is.
    "eval.model": (PROVENANCE,),
    "eval.api_key_env": (PROVENANCE,),
    "eval.samples": (EVALUATION,),
    "eval.k": (PROVENANCE,),  # What of the answers is shown.
    "eval.temperature": (EVALUATION,),
    "eval.top_p": (EVALUATION,),
    "eval.max_tokens": (EVALUATION,),
    "eval.seed": (EVALUATION,),
    "eval.concurrency": (PROVENANCE,),
    "eval.sandbox": (EVALUATION,),
    "eval.timeout_s": (EVALUATION,),
    "eval.memory_mib": (EVALUATION,),
    "eval.workers": (PROVENANCE,),
    "tracking.uri": (PROVENANCE,),
    "tracking.experiment": (PROVENANCE,),
    "tracking.system_metrics": (PROVENANCE,),
    "tracking.trackers": (PROVENANCE,),
    "storage.root": (PROVENANCE,),
    "checkpoint.every_steps": (PROVENANCE,),
    "checkpoint.every_minutes": (PROVENANCE,),
    "checkpoint.keep": (PROVENANCE,),
    "checkpoint.target": (PROVENANCE,),
    "checkpoint.resume_from": (SCIENCE,),
    "retry.failures": (PROVENANCE,),
    "retry.preemptions": (PROVENANCE,),
    "retry.resize_interval_s": (PROVENANCE,),
    "plan.workload": (PROVENANCE,),
    "plan.compile": (PROVENANCE,),
    "plan.answers": (PROVENANCE,),
    "plan.calibrate": (PROVENANCE,),
    "plan.gate": (PROVENANCE,),
    "plan.price": (PROVENANCE,),
    "plan.region": (PROVENANCE,),
    "plan.price_max_age_days": (PROVENANCE,),
    "plan.max_usd": (PROVENANCE,),
    "plan.max_hours": (PROVENANCE,),
    "plan.sweep_max_usd": (PROVENANCE,),
    "plan.sweep_max_hours": (PROVENANCE,),
    "plan.queue_hours": (PROVENANCE,),
    "plan.start_minutes": (PROVENANCE,),
    "plan.interruptions_per_day": (PROVENANCE,),
    "plan.outage_minutes": (PROVENANCE,),
    "plan.spot_trace": (PROVENANCE,),
    "plan.mean_tokens": (PROVENANCE,),
    "plan.p99_tokens": (PROVENANCE,),
    "plan.loss_share": (PROVENANCE,),
    "plan.prompt_tokens": (PROVENANCE,),
    "plan.output_tokens": (PROVENANCE,),
    "plan.prompt_p99_tokens": (PROVENANCE,),
    "plan.output_p99_tokens": (PROVENANCE,),
    "plan.requests": (PROVENANCE,),
    "plan.qps": (PROVENANCE,),
    "plan.trace": (PROVENANCE,),
    "plan.duration": (PROVENANCE,),
    "plan.seed": (PROVENANCE,),
    "plan.report": (PROVENANCE,),
    "hooks": (PROVENANCE,),
    "matters.loss": (PROVENANCE,),
    "matters.pass_at_k": (PROVENANCE,),
    "matters.speed": (PROVENANCE,),
    "matters.usd": (PROVENANCE,),
}
"""By dotted key of `ExperimentSpec`."""


def leaves(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every dotted key of a group of the spec with its value."""
    for one in fields(group):
        value = getattr(group, one.name)
        if is_dataclass(value):
            yield from leaves(value, f"{prefix}{one.name}.")
        else:
            yield f"{prefix}{one.name}", value


def settings(spec: Any, groups: tuple[str, ...]) -> dict[str, Any]:
    """The keys of `groups` that decide nothing but how the job was run, with their values in `spec`."""
    found = {key: value for key, value in leaves(spec) if KEY_CLASSES[key] == (PROVENANCE,) and key.partition(".")[0] in groups}
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}
