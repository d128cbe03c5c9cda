"""The group of an experiment that says how a model is served."""

from dataclasses import dataclass

from crossmesh.errors import require, require_choice
from crossmesh.spec.training import AUTO, DTYPES

KV_CACHE_DTYPES = ("float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True)
class ServeSpec:
    """A vLLM engine under Ray Serve."""

    host: str = "127.0.0.1"
    port: int = 8000
    """HTTP port; 0 takes a free one."""
    adapters: tuple[str, ...] = ()
    """Adapters to serve beside the base, as `name:source`. A source is a PEFT folder, `hf://owner/name[@revision]`, the id of an MLflow
    run or the identity of a trial."""
    max_loras: int = 0
    """Adapters that one batch of the engine can mix, held in its memory; others wait and take their place. 0: as many as `adapters`, so
    that an engine without any takes none later either."""
    max_model_len: int = 512
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 0
    """Tokens that one step of the engine computes at most, of answers and of parts of prompts; 0: vLLM's default for the accelerator."""
    dtype: str = AUTO
    """Compute dtype of the engine; `auto` is `model.dtype`."""
    kv_cache_dtype: str = AUTO
    kv_cache_gib: float = 1.0
    """Key-value cache on a CPU engine."""
    gpu_memory_utilization: float = 0.9
    tp: int = 1
    max_lora_rank: int = 64
    """Largest rank of an adapter."""
    seed: int = 0
    api_key_env: str = "CROSSMESH_API_KEY"
    """Environment variable with the key that clients must send. Unset: a key is made and kept under `storage.root`, mode 0600."""
    allow_anonymous: bool = False
    """Serve without a key. Only for a host that nobody else can reach."""
    start_timeout_s: float = 900.0

    def __post_init__(self) -> None:
        """Check ports, sizes and the form of `adapters`."""
        object.__setattr__(self, "adapters", tuple(self.adapters))
        require(bool(self.host), "serve.host", self.host, "an address of this machine, e.g. 127.0.0.1")
        require(0 <= self.port < 65536, "serve.port", self.port, "0 (any free port) to 65535")
        require(self.max_model_len >= 8, "serve.max_model_len", self.max_model_len, "at least 8 tokens")
        require(self.max_num_seqs > 0, "serve.max_num_seqs", self.max_num_seqs, "a positive number")
        step = self.max_num_batched_tokens
        enough = step == 0 or step >= self.max_num_seqs
        require(enough, "serve.max_num_batched_tokens", step, f"0 (vLLM's default), or serve.max_num_seqs={self.max_num_seqs} at least")
        require(self.kv_cache_gib > 0, "serve.kv_cache_gib", self.kv_cache_gib, "a positive number of GiB")
        require(0 < self.gpu_memory_utilization <= 1, "serve.gpu_memory_utilization", self.gpu_memory_utilization, "over 0, up to 1")
        require(self.max_loras >= 0, "serve.max_loras", self.max_loras, "0 (as many as serve.adapters) or more")
        require(self.max_lora_rank > 0, "serve.max_lora_rank", self.max_lora_rank, "a positive number")
        require(self.tp > 0, "serve.tp", self.tp, "a positive number")
        require(self.start_timeout_s > 0, "serve.start_timeout_s", self.start_timeout_s, "a positive number of seconds")
        require_choice("serve.dtype", self.dtype, (*DTYPES, AUTO))
        require_choice("serve.kv_cache_dtype", self.kv_cache_dtype, (*KV_CACHE_DTYPES, AUTO))
        for adapter in self.adapters:
            name, separator, source = adapter.partition(":")
            require(bool(name and separator and source), "serve.adapters", adapter, "name:source, e.g. torch:/path/to/adapter")
