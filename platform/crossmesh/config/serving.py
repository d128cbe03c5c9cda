"""The group of an experiment that says how a model is served."""

import re
from dataclasses import dataclass
from pathlib import Path

from crossmesh.config.training import AUTO, DTYPES
from crossmesh.errors import InputError, require, require_choice

KV_CACHE_DTYPES = ("float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2")
TASKS = ("generate", "embed")
SPECULATIVE = ("none", "ngram", "draft")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_OWN_PATHS = ("v1", "health", "ready", "metrics", "docs", "version", "load", "ping", "tokenize", "detokenize")
"""First parts of paths that an application at the root answers itself."""


@dataclass(frozen=True)
class ServeSpec:
    """A vLLM engine under Ray Serve."""

    name: str = ""
    """Names the server among others on one Ray cluster; its URL is then `http://host:port/<name>/v1`. A run with the same name replaces it
    while it answers; runs with other names run beside it."""
    host: str = "127.0.0.1"
    port: int = 8000
    """HTTP port; 0 takes a free one, or the one of the servers that run already."""
    tls_cert: str = ""
    """Certificate (chain) in PEM; with `tls_key` the server speaks HTTPS only."""
    tls_key: str = ""
    task: str = "generate"
    """`generate`, or `embed`: answer /v1/embeddings with the model's pooled last hidden state in place of generating."""
    adapters: tuple[str, ...] = ()
    """Adapters to serve beside the base, as `name:source`. A source is a PEFT folder, `hf://owner/name[@revision]`, the id of an MLflow
    run or the identity of a trial."""
    max_loras: int = 0
    """Adapters that one batch of the engine can mix, held in its memory; others wait and take their place. 0: as many as `adapters`, so
    that an engine without any takes none later either."""
    max_model_len: int = 512
    """Longest prompt with its answer, in tokens."""
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
    """Chips that share each layer."""
    pp: int = 1
    """Stages of layers, each on `tp` chips of its own."""
    replicas: int = 1
    """Engines that run at least, each on chips of its own; 0: none while nobody asks, and the first request waits for one."""
    max_replicas: int = 0
    """Engines that run at most; 0: `replicas`, whatever the load."""
    target_ongoing_requests: float = 0.0
    """Requests in an engine from which another one is started; 0: `max_num_seqs`."""
    scale_down_s: float = 300.0
    """Seconds of less load before an engine is stopped."""
    chunked_prefill: bool = True
    """Compute long prompts in parts, beside answers."""
    prefix_caching: bool = True
    """Keep keys and values of prompts for those that begin alike."""
    tool_parser: str = AUTO
    """vLLM's parser of tool calls in answers, for requests with `tools`: a name of vLLM's, `auto` by what the chat template writes, or
    `none`, which refuses `tool_choice="auto"`."""
    reasoning_parser: str = "none"
    """vLLM's parser that moves reasoning out of an answer's content, by vLLM's name, or `none`."""
    speculative: str = "none"
    """Guess tokens and check them in one step: `ngram` from the prompt, `draft` by a small model (`draft_model`)."""
    speculative_tokens: int = 3
    """Tokens guessed at a time."""
    draft_model: str = ""
    """Folder of the small model, with the tokenizer of the served one."""
    disaggregated: bool = False
    """Prefill and decode on engines of their own. No engine here can: refused by name."""
    compile_cache: str = ""
    """Folder on a volume that outlives the server, for what the engine compiles; empty: the node's own."""
    max_lora_rank: int = 64
    """Largest rank of an adapter."""
    seed: int = 0
    api_key_env: str = "CROSSMESH_API_KEY"
    """Environment variable with the key that clients must send. Unset: a key is made and kept under `storage.root`, mode 0600."""
    allow_anonymous: bool = False
    """Serve without a key. Only for a host that nobody else can reach."""
    start_timeout_s: float = 900.0
    request_timeout_s: float = 600.0
    """Seconds after which a request is given up: 503, or the end of its stream. Also how long a replaced server may finish what it has."""
    max_queue: int = 1024
    """Requests that may wait beside those that the engines compute (`max_num_seqs` each); further ones get 429."""
    log_prompts: bool = False
    """Write the bodies of requests into the access log."""

    def __post_init__(self) -> None:
        """Check names, ports, sizes and the form of `adapters`."""
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
        require(self.pp > 0, "serve.pp", self.pp, "a positive number")
        require(self.speculative_tokens > 0, "serve.speculative_tokens", self.speculative_tokens, "a positive number")
        require(self.request_timeout_s > 0, "serve.request_timeout_s", self.request_timeout_s, "a positive number of seconds")
        require(self.max_queue >= 0, "serve.max_queue", self.max_queue, "0 (no request waits) or more")
        for key in ("tool_parser", "reasoning_parser"):
            require(bool(getattr(self, key)), f"serve.{key}", getattr(self, key), "none, or a name of vLLM's")
        require_choice("serve.task", self.task, TASKS)
        require_choice("serve.speculative", self.speculative, SPECULATIVE)
        self._check_place()
        self._check_scaling()
        require_choice("serve.dtype", self.dtype, (*DTYPES, AUTO))
        require_choice("serve.kv_cache_dtype", self.kv_cache_dtype, (*KV_CACHE_DTYPES, AUTO))
        for adapter in self.adapters:
            name, separator, source = adapter.partition(":")
            require(bool(name and separator and source), "serve.adapters", adapter, "name:source, e.g. torch:/path/to/adapter")

    def _check_place(self) -> None:
        """Check where the server is found, and what it takes from the disk."""
        named = _NAME.fullmatch(self.name) is not None and self.name not in _OWN_PATHS
        allowed = f"lower-case letters, digits, '_' and '-', and not one of {', '.join(_OWN_PATHS)}"
        require(not self.name or named, "serve.name", self.name, allowed)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InputError("serve.tls_cert and serve.tls_key belong together: give both, or none for plain HTTP.")
        if (self.speculative == "draft") != bool(self.draft_model):
            raise InputError(
                f"serve.speculative={self.speculative} with serve.draft_model={self.draft_model!r}: a draft model is given exactly with "
                "serve.speculative=draft."
            )
        for key in ("tls_cert", "tls_key", "draft_model", "compile_cache"):
            path = getattr(self, key)
            require(not path or Path(path).is_absolute(), f"serve.{key}", path, "an absolute path")

    def _check_scaling(self) -> None:
        """Check the numbers of engines."""
        require(self.replicas >= 0, "serve.replicas", self.replicas, "0 or more")
        require(
            self.target_ongoing_requests >= 0, "serve.target_ongoing_requests", self.target_ongoing_requests, "0 (max_num_seqs) or more"
        )
        require(self.scale_down_s >= 0, "serve.scale_down_s", self.scale_down_s, "a number of seconds")
        fits = self.max_replicas == 0 or self.max_replicas >= self.replicas
        require(fits, "serve.max_replicas", self.max_replicas, f"0, or serve.replicas={self.replicas} at least")
        require(self.most_replicas > 0, "serve.replicas", self.replicas, "1 or more, or 0 with serve.max_replicas=1 or more")

    @property
    def most_replicas(self) -> int:
        """Engines that run at most."""
        return self.max_replicas or self.replicas
