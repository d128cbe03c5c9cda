"""Which Python environment and which environment variables each kind of worker gets, in one registry.

Every environment variable that the package reads or sets stands in `VARIABLES` with its reason; a test holds the rest of the package to
it. Nothing is set here: a `WorkerEnvironment` describes, Ray applies it. Secrets never enter a runtime environment (Ray shows those
in clear in its API and its logs): workers get them from their own node's environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from crossmesh.errors import InputError, closest_name
from crossmesh.hardware.devices import Cpu, Device, Gpu, Tpu
from crossmesh.hardware.emulation import emulating


@dataclass(frozen=True)
class Variable:
    """An environment variable that the package or an engine under it looks at, and why."""

    name: str
    used: str
    """`read`: the user may set it. `set`: we set it for a process we start. `both`: we set it unless the user did."""
    reason: str
    secret: bool = False
    """A secret is never put in a runtime environment."""


VARIABLES = (
    # Read from the user.
    Variable("CROSSMESH_STORAGE", "read", "Default of storage.root: where runs, adapters, checkpoints and caches live."),
    Variable("CROSSMESH_API_KEY", "read", "Key that clients of a server must send (serve.api_key_env names another).", secret=True),
    Variable("OPENAI_API_KEY", "both", "Key of bench.url and eval.url (or what api_key_env names); set for those who ask.", secret=True),
    Variable("CROSSMESH_IMAGE", "read", "The container image that the job runs in, by digest; part of the provenance record."),
    Variable("CROSSMESH_TEST_DATA", "read", "Folder with the larger files of the tests; tests that need it are skipped without it."),
    Variable("CROSSMESH_PYTHON_TRAIN_JAX", "read", "Interpreter of the train/jax environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_TRAIN_TORCH", "read", "Interpreter of the train/torch environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_SERVE_VLLM_CPU", "read", "Interpreter of the serve/vllm-cpu environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_SERVE_VLLM_GPU", "read", "Interpreter of the serve/vllm-gpu environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_SERVE_VLLM_TPU", "read", "Interpreter of the serve/vllm-tpu environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_PLAN_AOT_TPU", "read", "Interpreter of the plan/aot-tpu environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_PLAN_TRACE_GPU", "read", "Interpreter of the plan/trace-gpu environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_BENCH_VLLM", "read", "Interpreter of the bench/vllm environment, when it is not the driver's own."),
    Variable("CROSSMESH_PYTHON_EVAL_LM_EVAL", "read", "Interpreter of the eval/lm-eval environment, when it is not the driver's own."),
    Variable("CROSSMESH_COMPILER", "read", "Folder that holds libtpu for the plan/aot-tpu environment; `make compiler` fills .compiler."),
    Variable("RAY_ADDRESS", "read", "Ray cluster to connect to; unset or `local`: a local Ray is started for the job and ended with it."),
    Variable("RAY_AUTH_MODE", "read", "`disabled` turns Ray's token authentication off; otherwise a local Ray has it on."),
    Variable("RAY_AUTH_TOKEN", "read", "Token of the Ray cluster, instead of the one in ~/.ray/auth_token.", secret=True),
    Variable("RAY_AUTH_TOKEN_PATH", "read", "File with the token of the Ray cluster, instead of ~/.ray/auth_token."),
    Variable("HF_HOME", "read", "Cache of huggingface_hub for hf:// sources."),
    Variable("HF_HUB_CACHE", "read", "The same, named directly."),
    Variable("HF_ENDPOINT", "read", "Address of the hub, or of a mirror, for hf:// sources."),
    Variable("HF_TOKEN", "read", "Access to gated hf:// sources.", secret=True),
    Variable("HF_HUB_OFFLINE", "both", "1: hf:// sources come from the cache only; set in serving workers, whose model is a local folder."),
    Variable(
        "CROSSMESH_EMULATE",
        "read",
        "1: workers of TPUs and GPUs compute on CPU devices, for tests of clusters; their runs are marked so.",
    ),
    # Set in the driver when MLflow is opened, unless the user did (`track/mlflow/client.py`).
    Variable("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "both", "3: with MLflow's own 7, a refused connection blocks for four minutes."),
    Variable("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "both", "1 s: doubles from one retry to the next."),
    Variable("MLFLOW_HTTP_REQUEST_TIMEOUT", "both", "30 s: a server that does not answer must not hold a run for two minutes."),
    Variable("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "both", "true: stdout is the job's result."),
    Variable("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "both", "false: the job shows its own progress."),
    Variable("MLFLOW_LOGGING_LEVEL", "both", "WARNING: migrations of a fresh store are no news."),
    Variable("MLFLOW_DISABLE_TELEMETRY", "both", "true: tracking tells nobody else."),
    Variable("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "both", "false: `crossmesh ui` shows runs; MLflow would start seven more processes."),
    # Set in every worker.
    Variable("PYTHONPATH", "set", "The folder of the running package goes first, so that workers run the code that the driver runs."),
    Variable("TOKENIZERS_PARALLELISM", "set", "false: the Rust thread pool of tokenizers can deadlock in forked processes, and warns."),
    Variable("HF_HUB_DISABLE_TELEMETRY", "set", "1: loading a model tells nobody."),
    Variable("OMP_NUM_THREADS", "both", "Threads of a CPU worker: all cores, of an engine one less. Ray would set it to one."),
    Variable(
        "OMP_WAIT_POLICY", "set", "PASSIVE: waiting threads of a CPU worker sleep; spinning, they take the cores from Ray and clients."
    ),
    Variable("GOMP_SPINCOUNT", "set", "How often a waiting thread of a CPU engine looks before it sleeps; 30,000 take a millisecond."),
    # Set in training workers.
    Variable("JAX_PLATFORMS", "set", "The platform of the hardware; without it JAX probes for others, and takes a TPU that is not ours."),
    Variable(
        "XLA_FLAGS", "both", "The user's flags; on a CPU --xla_force_host_platform_device_count is added, so that it is several devices."
    ),
    Variable(
        "LIBTPU_INIT_ARGS",
        "both",
        "Collectives of sharded weights run beside the computation (XLA waits for them by default); the user's last.",
    ),
    Variable("TPU_SKIP_MDS_QUERY", "set", "1 where steps are compiled without a TPU: libtpu would ask Google Cloud which TPU this is."),
    Variable(
        "XLA_PYTHON_CLIENT_MEM_FRACTION", "both", "0.92 of a GPU: a training worker has it alone; JAX's own 0.75 leaves a quarter unused."
    ),
    Variable(
        "PYTORCH_ALLOC_CONF", "both", "expandable_segments:True: FSDP's gathered layers differ in size and would leave holes in GPU memory."
    ),
    Variable(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "both",
        "3, torch's own: end at once when a peer died. Ray's 1 first closes NCCL, which can hang then.",
    ),
    Variable(
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S",
        "both",
        "3600: nodes with accelerators take minutes to start; Ray would give up after one.",
    ),
    Variable("RAY_TRAIN_METRICS_ENABLED", "set", "0: Ray Train's own Prometheus gauges; our loop reports its own metrics."),
    Variable("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "set", "0.5 on CPU: the controller sees a finished worker sooner than in 2 s."),
    Variable("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "both", "0 on CPU: nobody preempts the local node; one process less."),
    Variable("RAY_CHDIR_TO_TRIAL_DIR", "set", "0: a worker keeps its working directory; all our paths are absolute."),
    # Set on the nodes of a cluster (cluster.yaml).
    Variable(
        "RAY_JOB_STOP_WAIT_TIME_S",
        "set",
        "150: after `ray job stop` a job ends its step and stores a checkpoint; Ray would kill it after 3 s.",
    ),
    Variable("RAY_gcs_storage", "set", "rocksdb: the head's GCS keeps what it knows on disk, and goes on from there when it died."),
    Variable("RAY_gcs_storage_path", "set", "Where: a folder of the head's own disk, of one cluster."),
    # Set in serving workers.
    Variable("VLLM_TARGET_DEVICE", "set", "The platform of the engine: beside libtpu vLLM finds two and refuses to start."),
    Variable(
        "VLLM_ENABLE_V1_MULTIPROCESSING", "set", "0 in checks of engines: the engine computes in the process that asks, and starts sooner."
    ),
    Variable("PYTHONHASHSEED", "set", "0 in the load generator: vLLM seeds prompts with Python's hash, another in each process."),
    Variable("VLLM_CPU_OMP_THREADS_BIND", "set", "nobind: threads of a CPU engine move between cores; vLLM would bind each to one."),
    Variable("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "set", "0: adapters are loaded by our routes, which check them; vLLM's take any path."),
    Variable("VLLM_CACHE_ROOT", "set", "serve.compile_cache: what an engine compiles outlives its node."),
    Variable("VLLM_XLA_CACHE_PATH", "set", "The same for a TPU engine."),
    Variable(
        "TORCHINDUCTOR_CACHE_DIR",
        "both",
        "backend.compile=layer: what torch compiles is kept in the cache of storage.root, or where this says.",
    ),
    Variable("MODEL_IMPL_TYPE", "set", "vllm where a TPU engine has adapters: its own models in JAX, which it prefers, take none."),
    Variable("TPU_MULTIHOST_BACKEND", "set", "ray where a TPU engine has a whole slice: a process on each host, on the reserved chips."),
    Variable("VLLM_NO_USAGE_STATS", "set", "1: vLLM sends no usage report."),
    Variable("MALLOC_MMAP_THRESHOLD_", "set", "1 GiB: a CPU engine keeps its freed memory, because fresh pages cost a tenth of its time."),
    Variable("MALLOC_TRIM_THRESHOLD_", "set", "1 GiB: the same."),
    Variable("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "set", "Wraps Ray Serve's proxy, so that its /-/routes is behind our gate too."),
    Variable("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "set", "60 s: Ray's 5 s end a proxy that a busy machine is slow to start."),
    # Set in the driver.
    Variable("HYDRA_FULL_ERROR", "set", "1: Hydra raises composition errors, which we turn into one message, instead of printing them."),
    # Set around a local Ray.
    Variable("RAY_TMPDIR", "set", "Temporary folder of our local Ray: its state API reads the address there."),
    Variable("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "set", "0: Ray keeps the address 127.0.0.1 and listens on nothing else."),
    Variable("RAY_enable_metrics_collection", "set", "0: Ray's metrics exporter listens on all interfaces."),
    Variable("TMPDIR", "set", "A folder in it: what engines leave behind, such as vLLM's sockets, is removed with the session."),
    Variable("RAY_worker_niceness", "both", "0: workers compute at the job's own priority. With Ray's 15 any other process goes first."),
    Variable("RAY_USAGE_STATS_ENABLED", "set", "0: the local Ray sends no usage report and asks no question about it."),
)

_PYTHON_PREFIX = "CROSSMESH_PYTHON_"
_AOT_TPU = "plan/aot-tpu"
_SERVE_CPU = "serve/vllm-cpu"
"""Its threads meet after each operation and wait for the one whose core works for a client, so one core is kept for such work."""

_EVERY_WORKER = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
_TRAIN = {"RAY_TRAIN_METRICS_ENABLED": "0", "RAY_CHDIR_TO_TRIAL_DIR": "0", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "3600"}
_TRAIN_CPU = {"OMP_WAIT_POLICY": "PASSIVE", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
_TRAIN_JAX_GPU = {
    "JAX_PLATFORMS": "cuda,cpu",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
    # Gathers of the next layer's weights start before this layer's computation ends.
    "XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true",
}
_TRAIN_JAX_TPU = {
    "JAX_PLATFORMS": "tpu,cpu",
    # The set that Google's MaxText trains sharded models with; each fuses a collective with the computation it runs beside.
    "LIBTPU_INIT_ARGS": "--xla_enable_async_all_gather=true --xla_tpu_enable_async_collective_fusion=true "
    "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true --xla_tpu_enable_async_collective_fusion_multiple_steps=true "
    "--xla_tpu_overlap_compute_collective_tc=true",
}
_TRAIN_TORCH_GPU = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
_VLLM = {"VLLM_NO_USAGE_STATS": "1"}

_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Lists of flags: the user's follow ours, and the last of two that differ wins."""


@dataclass(frozen=True)
class _Kind:
    """One row of the registry."""

    locks: Mapping[type[Device], str]
    """Lock file in `requirements/` by the device that the worker computes on."""
    variables: Mapping[type[Device], Mapping[str, str]] = field(default_factory=dict)
    """What a worker gets beside `_EVERY_WORKER`, by the same device."""


_REGISTRY = {
    "head": _Kind({Cpu: "head.txt", Gpu: "head.txt", Tpu: "head.txt"}),
    "train/jax": _Kind(
        {Cpu: "cpu.txt", Gpu: "gpu-jax.txt", Tpu: "tpu-train.txt"},
        {Cpu: {**_TRAIN, **_TRAIN_CPU, "JAX_PLATFORMS": "cpu"}, Gpu: {**_TRAIN, **_TRAIN_JAX_GPU}, Tpu: {**_TRAIN, **_TRAIN_JAX_TPU}},
    ),
    "train/torch": _Kind({Cpu: "cpu.txt", Gpu: "gpu.txt"}, {Cpu: {**_TRAIN, **_TRAIN_CPU}, Gpu: {**_TRAIN, **_TRAIN_TORCH_GPU}}),
    _SERVE_CPU: _Kind({Cpu: "cpu.txt"}, {Cpu: {**_VLLM, "VLLM_TARGET_DEVICE": "cpu"}}),
    "serve/vllm-gpu": _Kind({Gpu: "gpu.txt"}, {Gpu: {**_VLLM, "VLLM_TARGET_DEVICE": "cuda"}}),
    "serve/vllm-tpu": _Kind({Tpu: "tpu-serve.txt"}, {Tpu: {**_VLLM, "VLLM_TARGET_DEVICE": "tpu"}}),
    # Compiled with the flags of a run, on the CPU; libtpu comes from a folder of its own, because vLLM would take it for a TPU.
    _AOT_TPU: _Kind({Cpu: "cpu.txt"}, {Cpu: {**_TRAIN_JAX_TPU, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}}),
    "plan/trace-gpu": _Kind({Cpu: "cpu.txt"}),
    # Asks an endpoint and computes nothing.
    "eval/lm-eval": _Kind({Cpu: "lm-eval.txt"}),
    # Sends requests only; it needs vllm's benchmark and no accelerator.
    "bench/vllm": _Kind({Cpu: "cpu.txt"}, {Cpu: {**_VLLM, "VLLM_TARGET_DEVICE": "cpu"}}),
}


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker of one kind runs in."""

    kind: str
    lock: str
    """File in `requirements/` that the environment is installed from."""
    python: str | None
    """Interpreter; None: the one that runs Ray on the node."""
    variables: Mapping[str, str]

    def with_variables(self, **variables: str) -> "WorkerEnvironment":
        """Return the same environment with `variables` set as well; each must stand in `VARIABLES` and be no secret."""
        documented = {variable.name: variable for variable in VARIABLES}
        for name in variables:
            if name not in documented:
                raise ValueError(f"{name} is not documented: add it to VARIABLES in {__file__}")
            if documented[name].secret:
                raise ValueError(f"{name} is a secret: a runtime environment is readable by every client of the cluster")
        return replace(self, variables={**self.variables, **variables})

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The same as Ray's `runtime_env`."""
        described: dict[str, Any] = {"env_vars": dict(self.variables)}
        if self.python is not None:
            described["py_executable"] = self.python
        return described


def package_root() -> Path:
    """The folder that the running `crossmesh` was imported from."""
    return Path(__file__).resolve().parent.parent


def compiler_folder() -> Path:
    """Where `make compiler` puts libtpu: `.compiler` beside the package's source root, unless `CROSSMESH_COMPILER` says otherwise."""
    given = os.environ.get("CROSSMESH_COMPILER")
    return Path(given) if given else package_root().parent / ".compiler"


def made_harness() -> Path:
    """The interpreter of the environment that `make harness` makes, whether it is there or not."""
    return package_root().parent / ".harness" / "bin" / "python"


def usable_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def environment(kind: str, device: Device | None = None, *, workers_per_node: int = 1, devices_per_worker: int = 1) -> WorkerEnvironment:
    """Return the environment of workers of `kind` (a key of the registry).

    The interpreter is the driver's own unless `CROSSMESH_PYTHON_<KIND>` (say `CROSSMESH_PYTHON_TRAIN_JAX`) names another. What the user
    has set of the variables marked `both` stays.

    Args:
        kind: a key of the registry.
        device: what the workers are for; None: the only device of the kind, or the CPU.
        workers_per_node: workers that share a machine's cores, on a CPU.
        devices_per_worker: devices that a worker of JAX sees on a CPU.

    Raises:
        InputError: the kind is not registered, or does not exist on this device.
    """
    if kind not in _REGISTRY:
        guess = closest_name(kind, _REGISTRY)
        hint = f" Did you mean {guess!r}?" if guess else ""
        known = ", ".join(_REGISTRY)
        raise InputError(
            f"Worker kind {kind!r} is not known. Known: {known}.{hint} To add a kind, edit _REGISTRY in {Path(__file__).resolve()}."
        )
    entry = _REGISTRY[kind]
    device_type = _device_type(kind, entry, device)
    variables = {"PYTHONPATH": python_path(), **_EVERY_WORKER}
    if emulating() and kind.startswith("train/") and device_type is not Cpu:
        variables["CROSSMESH_EMULATE"] = "1"
        device_type = Cpu
    variables |= _users_first(entry.variables.get(device_type, {}))
    if device_type is Cpu:
        kept = 1 if kind == _SERVE_CPU else 0
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, usable_cores() // workers_per_node - kept)))
        if kind == "train/jax" and devices_per_worker > 1:
            users = os.environ.get("XLA_FLAGS", "")
            variables["XLA_FLAGS"] = f"{users} --xla_force_host_platform_device_count={devices_per_worker}".strip()
    if kind == _AOT_TPU:
        variables["PYTHONPATH"] += f"{os.pathsep}{compiler_folder()}"
    python = os.environ.get(_PYTHON_PREFIX + kind.upper().replace("/", "_").replace("-", "_"))
    return WorkerEnvironment(kind, entry.locks[device_type], python or None, variables)


def _device_type(kind: str, entry: _Kind, device: Device | None) -> type[Device]:
    if device is None:
        return Cpu if Cpu in entry.locks else next(iter(entry.locks))
    if type(device) not in entry.locks:
        possible = ", ".join(known.__name__ for known in entry.locks)
        raise InputError(
            f"Worker kind {kind!r} does not exist on {type(device).__name__} hardware ({device.chip}). It exists on: {possible}."
        )
    return type(device)


def _users_first(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables`, but the user's where they are set and may be; flags of the user are added to ours."""
    may = {variable.name for variable in VARIABLES if variable.used == "both"}
    users = {name: os.environ[name] for name in variables if name in may and name in os.environ}
    for name in users.keys() & set(_FLAGS):
        users[name] = f"{variables[name]} {users[name]}".strip()
    return {**variables, **users}


def python_path() -> str:
    """`PYTHONPATH` of a process that runs this package: its folder before whatever this process already has."""
    root = str(package_root())
    rest = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != root]
    return os.pathsep.join([root, *rest])
