"""Engine settings per accelerator: from the spec to what Ray Serve and vLLM are told, as plain values.

Everything here is a function from values to values (adapter configurations are read as JSON). It builds no Serve application and
imports neither Ray nor vLLM, so the driver may use it. Shapes of placement follow `ray.serve.llm` (a test compares them).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError
from crossmesh.files import read_json
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.training import AUTO

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM allocates adapters for (`vllm.config.lora.MaxLoRARanks`)."""

CPU_LORA_WORKER = "crossmesh.serve.lora_cpu_vllm.Worker"
"""vLLM worker class with LoRA kernels that are right for mixed batches and as fast as the base model's products."""

_GIB = 1 << 30
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

    @property
    def engine_kwargs(self) -> Mapping[str, Any]:
        """Arguments of vLLM's engine."""
        arguments: Mapping[str, Any] = self.llm_config["engine_kwargs"]
        return arguments

    @property
    def models(self) -> tuple[str, ...]:
        """Model names that clients may ask for, the base first."""
        return (self.llm_config["model_loading_config"]["model_id"], *self.adapters)


def engine_settings(spec: ExperimentSpec, model_folder: Path, adapters: Mapping[str, Path], base_name: str = "base") -> EngineSettings:
    """Return the settings of one engine that serves the model in `model_folder` as `base_name`, and each adapter by its name.

    Raises `InputError` for a folder that is no model or no adapter, for a name used twice, for an adapter over
    `serve.max_lora_rank`, and for a `serve.tp` that the hardware cannot hold.
    """
    device = spec.hardware.slice.device
    _check_folders(model_folder, adapters, base_name)
    _check_parallelism(spec.serve.tp, device)
    arguments = _common_arguments(spec) | _lora_arguments(spec.serve.max_lora_rank, adapters) | _device_arguments(spec, device, adapters)
    llm_config: dict[str, Any] = {
        "model_loading_config": {"model_id": base_name, "model_source": str(model_folder.resolve())},
        "engine_kwargs": arguments,
        # Engine metrics stay on vLLM's own /metrics route; Ray's exporter needs the dashboard agent.
        "log_engine_metrics": False,
        **_accelerator(device),
    }
    folders = {name: str(folder.resolve()) for name, folder in adapters.items()}
    return EngineSettings(_kind(device), llm_config, folders, _deployment(spec.serve.tp, device), _variables(device))


def serving_rank(ranks: Mapping[str, int], limit: int) -> int:
    """Return the smallest rank vLLM can allocate for adapters of `ranks` by name; `InputError` when one exceeds `limit`.

    Allocating more than needed is not free: every shrink and expand computes over the whole allocated rank.
    """
    for name, rank in ranks.items():
        if rank > limit:
            raise InputError(
                f"Adapter {name!r} has rank {rank}, over serve.max_lora_rank={limit}. Raise serve.max_lora_rank to {rank} or more."
            )
    needed = max(ranks.values())
    fitting = [rank for rank in LORA_RANKS if rank >= needed]
    if not fitting:
        raise InputError(f"An adapter of rank {needed} cannot be served: vLLM's largest LoRA rank is {LORA_RANKS[-1]}.")
    return fitting[0]


def _check_folders(model_folder: Path, adapters: Mapping[str, Path], base_name: str) -> None:
    if not (model_folder / "config.json").is_file():
        raise InputError(f"{model_folder} holds no model: config.json is missing. Give the folder that `fetch_model` made.")
    for name, folder in adapters.items():
        if name == base_name:
            raise InputError(f"serve.adapters: the name {name!r} is the base model's. Give the adapter another name.")
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            if not (folder / file).is_file():
                raise InputError(f"serve.adapters: {name}:{folder} is no PEFT adapter: {file} is missing.")


def _check_parallelism(tp: int, device: Device) -> None:
    chips = device.chip_count()
    if isinstance(device, Tpu) and tp > device.chips_per_host and tp % device.chips_per_host:
        raise InputError(
            f"serve.tp={tp} does not fill whole hosts of {device.chips_per_host} chips. Allowed: a multiple of {device.chips_per_host}."
        )
    if tp > chips:
        raise InputError(f"serve.tp={tp} is more than the {chips} chips of {device.chip}. Allowed: 1 to {chips}.")


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
    return {
        "dtype": spec.model.dtype if serve.dtype == AUTO else serve.dtype,
        "kv_cache_dtype": serve.kv_cache_dtype,
        "max_model_len": serve.max_model_len,
        "max_num_seqs": serve.max_num_seqs,
        "tensor_parallel_size": serve.tp,
        "seed": serve.seed,
        # Sampling is what the request says, never a default hidden in the model folder.
        "generation_config": "vllm",
        "disable_uvicorn_access_log": True,
    }


def _lora_arguments(limit: int, adapters: Mapping[str, Path]) -> dict[str, Any]:
    if not adapters:
        return {}
    ranks = {name: int(read_json(folder / "adapter_config.json")["r"]) for name, folder in adapters.items()}
    return {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": serving_rank(ranks, limit)}


def _device_arguments(spec: ExperimentSpec, device: Device, adapters: Mapping[str, Path]) -> dict[str, Any]:
    if isinstance(device, Cpu):
        # Compiling costs a minute here, and vLLM's CPU backend does not compile at all once adapters are enabled.
        arguments: dict[str, Any] = {"kv_cache_memory_bytes": int(spec.serve.kv_cache_gib * _GIB), "enforce_eager": True}
        return arguments | ({"worker_cls": CPU_LORA_WORKER} if adapters else {})
    return {"gpu_memory_utilization": spec.serve.gpu_memory_utilization}


def _variables(device: Device) -> dict[str, str]:
    # The model is a local folder with everything in it.
    variables = {"HF_HUB_OFFLINE": "1"}
    if isinstance(device, Cpu):
        # vLLM would keep a core free for its scheduler, half of a small machine; ours shares the cores instead. Threads that wait must
        # then sleep: spinning ones took six times the CPU time as soon as anything else ran.
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "PASSIVE"}
        # Keep freed memory: activations come and go with each layer, and fresh pages cost a tenth of the time.
        variables |= {"MALLOC_MMAP_THRESHOLD_": str(_GIB), "MALLOC_TRIM_THRESHOLD_": str(_GIB)}
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


def _deployment(tp: int, device: Device) -> dict[str, Any]:
    options: dict[str, Any] = {
        "num_replicas": 1,
        # vLLM queues by itself (`max_num_seqs` run at once); Serve's default of 5 would starve it.
        "max_ongoing_requests": 1_000_000,
        # A failing engine fails again: one try, then its error.
        "max_constructor_retry_count": 1,
        "graceful_shutdown_timeout_s": 10.0,
        "ray_actor_options": {"num_cpus": 1},
    }
    match device:
        case Cpu():
            options["placement_group_bundles"] = [{"CPU": 1}]
        case Gpu():
            chip = {"GPU": 1, f"accelerator_type:{_ray_accelerator(device)}": _ACCELERATOR_SHARE}
            # The replica itself sits in the first bundle.
            options["placement_group_bundles"] = [chip | {"CPU": 1}, *[dict(chip) for _ in range(tp - 1)]]
            options["placement_group_strategy"] = "PACK"
        case Tpu():
            # ray.serve.llm reserves the slice from inside the replica, all hosts or none.
            pass
    return options
