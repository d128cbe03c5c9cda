"""Engine settings per accelerator: from the spec to what Ray Serve and vLLM are told, as plain values.

Everything here is a function from values to values. It builds no Serve application and imports neither Ray nor vLLM, so the driver may
use it. Shapes of placement follow `ray.serve.llm` (a test compares them).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import AUTO, LORA_TARGETS
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.hardware.emulation import emulated
from crossmesh.installation import job_command
from crossmesh.model_folder import template_of
from crossmesh.models.families.registry import read_architecture
from crossmesh.serve.adapters import ServedAdapter, ServedBase, check_names, check_rank, serving_rank
from crossmesh.serve.vllm.options import check_options, compile_variables, on_reserved_chips, option_arguments, scaling, service_limits
from crossmesh.serve.vllm.parsers import parser_arguments

CPU_LORA_WORKER = "crossmesh.serve.vllm.lora_cpu_vllm.Worker"
"""vLLM worker class with LoRA kernels that are right for mixed batches and as fast as the base model's products."""

_RECORDED_WORKER = "crossmesh.serve.lora_cpu_vllm.Worker"
"""What records call that class, wherever it lies: servers that differ in nothing else are the same."""

LORA_MODULES = tuple(f"{name}_proj" for name in LORA_TARGETS)
"""What vLLM makes ready for adapters: left to itself it allocates them for experts, routers and per-layer inputs as well."""

_GIB = 1 << 30
# Threads are not bound to cores, of which others use some, and are one less than the cores (`environments.py`). Those that wait must sleep:
# spinning ones took six times the CPU time as soon as anything else ran. They do so after a millisecond: a step is a thousand small
# operations, and each would wait for them to wake. And keep freed memory: activations come and go with each layer, and fresh pages cost a
# tenth of the time.
CPU_VARIABLES: Mapping[str, str] = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "30000",
    "MALLOC_MMAP_THRESHOLD_": str(_GIB),
    "MALLOC_TRIM_THRESHOLD_": str(_GIB),
}
"""How the engine of a CPU uses its threads and memory where it shares the cores with its server."""
_ACCELERATOR_SHARE = 0.001
"""Ray's custom resource `accelerator_type:X` is only asked for to choose a node, so a thousandth is enough."""


@dataclass(frozen=True)
class EngineSettings:
    """One engine as plain values that can be pickled, recorded and compared."""

    kind: str
    """Worker kind of `environments.py`: `serve/vllm-cpu`, `-gpu` or `-tpu`."""
    llm_config: Mapping[str, Any]
    """Keyword arguments of `ray.serve.llm.LLMConfig`."""
    adapters: Mapping[str, str]
    """Adapter folders by the model name that clients use."""
    deployment: Mapping[str, Any]
    """Options of the Serve deployment: placement, replicas, queue."""
    variables: Mapping[str, str]
    """Environment variables of the replica beside those of its worker kind."""
    chip: str
    """The catalogue's name of the chip."""
    chips: int
    """Chips that one replica computes on."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """How many engines answer, and what the gate lets in (`options.service_limits`)."""
    stand_in: Mapping[str, Any] | None = None
    """On an emulated cluster: the CPU engine (as `llm_config`) that computes on the chips that `llm_config` reserves."""

    @property
    def engine_kwargs(self) -> Mapping[str, Any]:
        """Arguments of the engine that computes."""
        arguments: Mapping[str, Any] = (self.stand_in or self.llm_config)["engine_kwargs"]
        return arguments

    @property
    def recorded_arguments(self) -> dict[str, Any]:
        """The same as records have them."""
        arguments = dict(self.engine_kwargs)
        return arguments | ({"worker_cls": _RECORDED_WORKER} if arguments.get("worker_cls") == CPU_LORA_WORKER else {})

    @property
    def models(self) -> tuple[str, ...]:
        """Model names that clients may ask for, the base first."""
        return (self.llm_config["model_loading_config"]["model_id"], *self.adapters)


def engine_settings(spec: ExperimentSpec, base: ServedBase, adapters: Sequence[ServedAdapter] = ()) -> EngineSettings:
    """Return the settings of one engine that serves `base` and each of `adapters` by its name.

    Raises `InputError` for a folder that is not a model, for a name used twice, for an adapter over `serve.max_lora_rank`, for adapters of
    a model with experts on a CPU, and for what the hardware or its engine cannot do (`options.check_options`).
    """
    device = spec.hardware.slice.device
    if not (base.folder / "config.json").is_file():
        raise InputError(f"{base.folder} holds no model: config.json is missing. Give the folder that `fetch_model` made.")
    check_names([adapter.name for adapter in adapters])
    check_options(spec.serve, device)
    lora = _lora_arguments(spec.serve, adapters)
    computing: Device = Cpu() if emulated(device) else device
    if lora and isinstance(computing, Cpu):
        check_no_experts(base.folder)
    config = _llm_config(spec, base, lora, device)
    stand_in = None
    if computing is not device:
        alone = replace(spec, serve=replace(spec.serve, tp=1, pp=1, kv_cache_dtype=AUTO))
        stand_in = _llm_config(alone, base, lora, computing)
    return EngineSettings(
        _kind(computing),
        config,
        {adapter.name: str(adapter.folder.resolve()) for adapter in adapters},
        _deployment(spec.serve, device),
        _variables(computing, spec.serve, adapted=bool(lora)) | compile_variables(spec.serve),
        device.chip,
        spec.serve.tp * spec.serve.pp,
        service_limits(spec.serve),
        stand_in,
    )


def _llm_config(spec: ExperimentSpec, base: ServedBase, lora: dict[str, Any], device: Device) -> dict[str, Any]:
    """Arguments of `ray.serve.llm.LLMConfig` for an engine on `device`."""
    return {
        "model_loading_config": {"model_id": base.name, "model_source": str(base.folder.resolve())},
        "engine_kwargs": _common_arguments(spec)
        | parser_arguments(spec.serve, template_of(base.folder) or "")
        | lora
        | _device_arguments(spec, device, adapted=bool(lora)),
        # Engine metrics stay on vLLM's own /metrics route; Ray's exporter needs the dashboard agent.
        "log_engine_metrics": False,
        **_accelerator(device),
    }


def check_no_experts(folder: Path) -> None:
    """Raise `InputError` when the model in `folder` has experts: its adapters cannot be served on a CPU.

    With LoRA on, vLLM 0.32 computes experts by Triton alone, whatever is adapted; its CPU build has none and dies in the warm-up.
    """
    if read_architecture(folder).experts:
        raise InputError(
            f"{folder} has experts, and vLLM 0.32 serves no adapters of such a model on a CPU. Allowed: a GPU or TPU as hardware, or the "
            f"merged model ({job_command('export')} mode=merged) without serve.adapters and serve.max_loras."
        )


def _kind(device: Device) -> str:
    match device:
        case Cpu():
            return "serve/vllm-cpu"
        case Gpu():
            return "serve/vllm-gpu"
        case Tpu():
            return "serve/vllm-tpu"


def _common_arguments(spec: ExperimentSpec) -> dict[str, Any]:
    serve = spec.serve
    step = {"max_num_batched_tokens": serve.max_num_batched_tokens} if serve.max_num_batched_tokens else {}
    return (
        step
        | option_arguments(serve)
        | {
            "dtype": spec.model.dtype if serve.dtype == AUTO else serve.dtype,
            "kv_cache_dtype": serve.kv_cache_dtype,
            "max_model_len": serve.max_model_len,
            "max_num_seqs": serve.max_num_seqs,
            "seed": serve.seed,
            # Sampling is what the request says, never a default hidden in the model folder.
            "generation_config": "vllm",
            "disable_uvicorn_access_log": True,
        }
    )


def _lora_arguments(serve: ServeSpec, adapters: Sequence[ServedAdapter]) -> dict[str, Any]:
    """What the engine allocates for adapters: nothing when there are none and none may come.

    With room for more adapters than there are, ranks of later ones are not known, so all of `serve.max_lora_rank` is allocated.
    """
    slots = serve.max_loras or len(adapters)
    if not slots:
        return {}
    for adapter in adapters:
        check_rank(adapter, serve.max_lora_rank)
    open_slots = slots > len(adapters)
    rank = serve.max_lora_rank if open_slots else max(adapter.rank for adapter in adapters)
    return {
        "enable_lora": True,
        "max_loras": slots,
        # In host memory; one that is not there is read again from its folder when it is asked for.
        "max_cpu_loras": max(slots, len(adapters)),
        "max_lora_rank": serving_rank(rank),
        "lora_target_modules": list(LORA_MODULES),
    }


def _device_arguments(spec: ExperimentSpec, device: Device, *, adapted: bool) -> dict[str, Any]:
    if isinstance(device, Cpu):
        # Compiling costs a minute here, and vLLM's CPU backend does not compile at all once adapters are enabled.
        arguments: dict[str, Any] = {"kv_cache_memory_bytes": int(spec.serve.kv_cache_gib * _GIB), "enforce_eager": True}
        return arguments | ({"worker_cls": CPU_LORA_WORKER} if adapted else {})
    return {"gpu_memory_utilization": spec.serve.gpu_memory_utilization}


def _variables(device: Device, serve: ServeSpec, *, adapted: bool) -> dict[str, str]:
    # The model is a local folder with everything in it.
    # Adapters are loaded through our own routes, which check them; vLLM's take any path.
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "0"}
    match device:
        case Cpu():
            variables |= CPU_VARIABLES
        case Tpu():
            variables |= _tpu_variables(device, serve, adapted=adapted)
    return variables


def _tpu_variables(device: Tpu, serve: ServeSpec, *, adapted: bool) -> dict[str, str]:
    """Return what tpu-inference 0.32 reads: which implementation of the model computes, and where.

    It prefers models of its own in JAX, and those take no adapters: an engine with adapters would start and fail at the first of them.
    Without Ray it computes in the replica's process, on chips of the replica's host, which need not be those that the replica reserved;
    on a slice of several hosts it would wait for the others.
    """
    variables = {"MODEL_IMPL_TYPE": "vllm"} if adapted else {}
    if on_reserved_chips(serve, device):
        variables["TPU_MULTIHOST_BACKEND"] = "ray"
    return variables


def _ray_accelerator(device: Gpu | Tpu) -> str:
    """Ray's name of the chip in `accelerator_type:` resources: `H100`, or `TPU-V5P` for a pod type `v5p-8`."""
    if isinstance(device, Gpu):
        return device.accelerator_type
    return "TPU-" + device.accelerator_type.rpartition("-")[0].upper()


def _accelerator(device: Device) -> dict[str, Any]:
    match device:
        case Cpu():
            return {"accelerator_type": None, "placement_group_config": {"bundles": [{"CPU": 1}]}}
        case Gpu():
            return {"accelerator_type": _ray_accelerator(device), "accelerator_config": {"kind": "gpu"}}
        case Tpu():
            return {"accelerator_type": _ray_accelerator(device), "accelerator_config": {"kind": "tpu", "topology": device.topology}}


def _deployment(serve: ServeSpec, device: Device) -> dict[str, Any]:
    options: dict[str, Any] = {
        **scaling(serve),
        # The gate bounds what comes in (`options.capacity`) and vLLM queues by itself; Serve's default of 5 would starve it.
        "max_ongoing_requests": 1_000_000,
        # A failing engine fails again: one try, then its error.
        "max_constructor_retry_count": 1,
        # A new version starts beside the old one, which then answers what it has before it goes.
        "max_surge_percent": 100,
        "graceful_shutdown_timeout_s": serve.request_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "ray_actor_options": {"num_cpus": 1},
    }
    match device:
        case Cpu():
            options["placement_group_bundles"] = [{"CPU": 1}]
        case Gpu():
            chip = {"GPU": 1, f"accelerator_type:{_ray_accelerator(device)}": _ACCELERATOR_SHARE}
            # The replica itself sits in the first bundle.
            options["placement_group_bundles"] = [chip | {"CPU": 1}, *[dict(chip) for _ in range(serve.tp * serve.pp - 1)]]
            options["placement_group_strategy"] = "PACK"
        case Tpu():
            # ray.serve.llm reserves the slice from inside the replica, all hosts or none; the replica itself needs a host's environment.
            options["ray_actor_options"] |= {"resources": {device.node_resource: _ACCELERATOR_SHARE}, "label_selector": device.host_labels}
    return options
