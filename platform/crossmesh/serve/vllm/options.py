"""Options of an engine: the spec's keys as vLLM's arguments, and what the engine of an accelerator cannot do, refused by its key.

Functions from values to values. Names of arguments are checked once more where the engine is installed (`engine_vllm.py`): another
version may have dropped one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import AUTO
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Cpu, Device, Tpu

SPEC_KEYS: Mapping[str, str] = {
    "tensor_parallel_size": "serve.tp",
    "pipeline_parallel_size": "serve.pp",
    "enable_chunked_prefill": "serve.chunked_prefill",
    "enable_prefix_caching": "serve.prefix_caching",
    "speculative_config": "serve.speculative",
    "runner": "serve.task",
    "convert": "serve.task",
    "kv_cache_dtype": "serve.kv_cache_dtype",
    "kv_cache_memory_bytes": "serve.kv_cache_gib",
    "gpu_memory_utilization": "serve.gpu_memory_utilization",
    "max_num_batched_tokens": "serve.max_num_batched_tokens",
    "max_loras": "serve.max_loras",
    "max_lora_rank": "serve.max_lora_rank",
    "tool_call_parser": "serve.tool_parser",
    "reasoning_parser": "serve.reasoning_parser",
}
"""The key of the spec that an argument of the engine comes from; others are ours."""

_NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Tokens that must have been seen together before: vLLM's documentation of n-gram matching uses up to 4."""


def option_arguments(serve: ServeSpec) -> dict[str, Any]:
    """Return the arguments of vLLM's engine for parallelism, caches, speculation and task."""
    arguments: dict[str, Any] = {"tensor_parallel_size": serve.tp}
    if serve.pp > 1:
        arguments["pipeline_parallel_size"] = serve.pp
    if serve.task == "embed":
        return arguments | {"runner": "pooling", "convert": "embed"}
    arguments |= {"enable_chunked_prefill": serve.chunked_prefill, "enable_prefix_caching": serve.prefix_caching}
    guesses = {"num_speculative_tokens": serve.speculative_tokens}
    match serve.speculative:
        case "ngram":
            arguments["speculative_config"] = {"method": "ngram", **guesses, **_NGRAM}
        case "draft":
            arguments["speculative_config"] = {"method": "draft_model", "model": serve.draft_model, **guesses}
    return arguments


def compile_variables(serve: ServeSpec) -> dict[str, str]:
    """Return the environment variables that keep what the engine compiles in `serve.compile_cache`."""
    folder = serve.compile_cache
    return {"VLLM_CACHE_ROOT": folder, "VLLM_XLA_CACHE_PATH": f"{folder}/xla_cache"} if folder else {}


def check_options(serve: ServeSpec, device: Device) -> None:
    """Raise `InputError` for what the engine of `device` cannot do: the key, why not, and what is possible."""
    chips, wanted = device.chip_count(), serve.tp * serve.pp
    if wanted > chips:
        raise InputError(f"{_sizes(serve)} is more than the {chips} chips of {device.chip}. Allowed: 1 to {chips}.")
    if serve.disaggregated:
        raise InputError(
            "serve.disaggregated=true is not possible: ray.serve.llm's prefill-decode application needs a connector that moves the cache "
            "between engines (NIXL), which no environment of ours has, and adapters would not follow. Leave it out; "
            "serve.chunked_prefill=true computes long prompts beside answers."
        )
    if serve.task == "embed" and (serve.adapters or serve.max_loras):
        raise InputError("serve.task=embed serves no adapters: they are trained to generate. Leave out serve.adapters and serve.max_loras.")
    if serve.task == "embed" and serve.speculative != "none":
        raise InputError(f"serve.speculative={serve.speculative} with serve.task=embed: nothing is generated. Leave it out.")
    if serve.draft_model and not (Path(serve.draft_model) / "config.json").is_file():
        raise InputError(f"serve.draft_model={serve.draft_model!r} holds no model: config.json is missing.")
    match device:
        case Cpu():
            _check_cpu(serve)
        case Tpu():
            _check_tpu(serve)
            _check_slice(serve, device)


def _sizes(serve: ServeSpec) -> str:
    return f"serve.tp={serve.tp}" if serve.pp == 1 else f"serve.tp={serve.tp} with serve.pp={serve.pp}"


def _check_cpu(serve: ServeSpec) -> None:
    if serve.compile_cache:
        raise InputError("serve.compile_cache: the CPU engine compiles nothing (it runs eagerly). Leave it out, or choose other hardware.")
    if serve.kv_cache_dtype in ("float16", "bfloat16"):
        raise InputError(
            f"serve.kv_cache_dtype={serve.kv_cache_dtype}: the CPU engine keeps its cache in serve.dtype or in 8 bits. "
            f"Allowed: {AUTO}, fp8, fp8_e4m3, fp8_e5m2."
        )


def _check_tpu(serve: ServeSpec) -> None:
    if serve.speculative == "draft":
        raise InputError("serve.speculative=draft: vLLM's TPU engine has no draft models. Allowed there: none, ngram.")
    if serve.kv_cache_dtype == "float16":
        raise InputError("serve.kv_cache_dtype=float16: TPUs compute in bfloat16. Allowed there: auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2.")


_ONE_DEVICE = ("v5e", "v6e")
"""Chips that tpu-inference 0.32 counts as one device (`tpu_info.get_num_cores_per_chip`); of the others it counts two."""


def fills_slice(serve: ServeSpec, device: Tpu) -> bool:
    """Whether an engine computes on every chip of its slice."""
    return serve.tp * serve.pp == device.chip_count()


def on_reserved_chips(serve: ServeSpec, device: Tpu) -> bool:
    """Whether Ray can start the processes of an engine on the chips that it reserved: one on each host, of which a stage has one or all."""
    return fills_slice(serve, device) and (serve.pp == 1 or device.hosts > 1)


def _check_slice(serve: ServeSpec, device: Tpu) -> None:
    """Check how an engine lies on its slice, which is reserved as a whole: with a process on each host, or on a part of one host."""
    chips, per_host, hosts = device.chip_count(), device.chips_per_host, device.hosts
    if device.chip == "v7x":
        raise InputError(
            f"serve.tp on {device.accelerator_type}: the engine takes two devices of each chip, and Ray one, so half of the chips would be "
            "paid for and idle. Choose other hardware: v5e, v5p or v6e."
        )
    if serve.pp > 1 and device.chip not in _ONE_DEVICE:
        raise InputError(
            f"{_sizes(serve)} on {device.accelerator_type}: the engine gives a stage of layers half of its chips there (it counts two "
            f"devices a chip) and does not start. Allowed: serve.pp=1; stages are possible on {' and '.join(_ONE_DEVICE)}."
        )
    staged = f", or serve.tp={per_host} with serve.pp={hosts}" if device.chip in _ONE_DEVICE else ""
    allowed = f"serve.tp={chips}{staged}"
    if hosts > 1 and not fills_slice(serve, device):
        raise InputError(
            f"{_sizes(serve)} does not fill the {chips} chips of {device.accelerator_type}: on several hosts an engine has a process "
            f"on each, and all of them compute. Allowed: {allowed}; or a slice of one host."
        )
    if hosts > 1 and serve.pp not in (1, hosts):
        raise InputError(f"{_sizes(serve)} on {hosts} hosts of {per_host} chips: a stage of layers has one host. Allowed: {allowed}.")
    if serve.most_replicas > 1 and not on_reserved_chips(serve, device):
        raise InputError(
            f"{_sizes(serve)} with up to {serve.most_replicas} engines: one that does not share each layer over all {chips} chips of its "
            f"slice computes in its replica's process, and two replicas may meet on one host. Allowed: one engine, or serve.tp={chips}."
        )


def scaling(serve: ServeSpec) -> dict[str, Any]:
    """Return how many engines a Serve deployment has: a number, or limits and the load that moves it between them."""
    if serve.most_replicas == serve.replicas:
        return {"num_replicas": serve.replicas}
    return {
        "num_replicas": "auto",
        "autoscaling_config": {
            "min_replicas": serve.replicas,
            "max_replicas": serve.most_replicas,
            # An engine that cannot start says so at once, not to the first client.
            "initial_replicas": max(1, serve.replicas),
            "target_ongoing_requests": serve.target_ongoing_requests or float(serve.max_num_seqs),
            "downscale_delay_s": serve.scale_down_s,
        },
    }


def capacity(serve: ServeSpec) -> int:
    """Requests that compute or wait at once at most."""
    return serve.most_replicas * serve.max_num_seqs + serve.max_queue


def service_limits(serve: ServeSpec) -> dict[str, Any]:
    """Return what decides, beside the engine, how fast a server answers and what it turns away; settings without effect are left out."""
    moved = {
        "target_ongoing_requests": serve.target_ongoing_requests or float(serve.max_num_seqs),
        "scale_down_s": serve.scale_down_s,
    }
    return {
        "replicas": serve.replicas,
        "max_replicas": serve.most_replicas,
        **(moved if serve.most_replicas > serve.replicas else {}),
        "max_queue": serve.max_queue,
        "request_timeout_s": serve.request_timeout_s,
    }
