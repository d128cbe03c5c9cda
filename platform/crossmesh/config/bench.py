"""The group of an experiment that says which load a server is measured under."""

from dataclasses import dataclass, field
from typing import Any

from crossmesh.errors import require, require_choice
from crossmesh.plugins import Registry

RATE, BURST, CONCURRENCY, TRACE = "rate", "burst", "concurrency", "trace"
WORKLOADS = Registry[Any](
    "crossmesh.workloads",
    "workload",
    {
        RATE: "crossmesh.bench.workloads:Rate",
        BURST: "crossmesh.bench.workloads:Burst",
        CONCURRENCY: "crossmesh.bench.workloads:Concurrency",
        TRACE: "crossmesh.bench.workloads:TraceReplay",
    },
)
"""Subclasses of `crossmesh.bench.workload.Workload`, by the name that `bench.load` gives."""
TRACE_DIGEST = "bench.trace_sha256"
"""Parameter of a tracked run: what the trace held, which its path does not say."""
CACHES = ("cold", "warm")
AGAINST = ("", "bare")
REPORTS = ("", "paper")


@dataclass(frozen=True)
class BenchSpec:
    """Cells of load, how often each is measured and what counts as good. A cell is one point of load x prompt x answer."""

    load: str = RATE
    """`rate`: requests arrive by themselves, `qps` a second; `burst`: all at once; `concurrency`: so many are always in flight; `trace`:
    those of a recorded trace; or a workload of an installed package."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a package's workload, by name."""
    qps: tuple[float, ...] = (1.0,)
    """Requests a second (`rate`), each a cell."""
    burstiness: float = 1.0
    """Shape of the times between arrivals (`rate`): 1 is Poisson, less comes in bursts, more is even."""
    concurrency: tuple[int, ...] = (1, 4, 16)
    """Requests in flight (`concurrency`), each a cell."""
    trace: str = ""
    """Requests (`trace`): CSV or JSON lines of `arrival_s`, `prompt_tokens`, `output_tokens`, or a file of Azure, BurstGPT or Mooncake."""
    time_scale: float = 1.0
    """What a trace's arrival times are multiplied by: 0.5 plays it twice as fast."""
    length_scale: float = 1.0
    """What a trace's prompts and answers are multiplied by, to play it on a smaller server."""
    prompt_tokens: tuple[int, ...] = (128,)
    """Prompts, each a cell; all prompts of a cell are random and of exactly this length."""
    output_tokens: tuple[int, ...] = (64,)
    """Answers, each a cell; end-of-text is ignored, so they are of exactly this length."""
    requests: int = 64
    """Requests of a cell; of a trace the first so many."""
    seconds: float = 0.0
    """Least time over which requests arrive (`rate`): a cell has more than `requests` where they come faster."""
    repeats: int = 3
    """Times that a cell is measured, each with prompts of its own; intervals are taken over them."""
    warmup: int = 4
    """Requests before each measurement that are not counted, with prompts of their own."""
    cache: str = "cold"
    """`cold`: no prompt was sent before, and the prefix cache is emptied where the server allows it; `warm`: all prompts were."""
    seed: int = 0
    """Of prompts and arrivals."""
    slo_ttft_ms: float = 0.0
    """Time to the first token that is good enough, in milliseconds; 0: any."""
    slo_tpot_ms: float = 0.0
    """Time per further token that is good enough; 0: any."""
    slo_e2e_ms: float = 0.0
    """Time to the last token that is good enough; 0: any."""
    slo_share: float = 0.9
    """Part of the requests that must be good for a rate to count as sustained."""
    search: bool = False
    """Look for the highest rate that is sustained (`rate`), beginning at the first of `qps`, for each prompt and answer."""
    url: str = ""
    """OpenAI base URL of a server to measure, e.g. https://host/v1; empty: the job starts the server that the experiment describes."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key for `url`; unset: none is sent."""
    model: str = ""
    """Model name to ask for; empty: the server's first."""
    tokenizer: str = ""
    """Folder of the tokenizer whose tokens prompts are made of, for `url`; empty: the model's, which is then fetched."""
    against: str = ""
    """`bare`: measure the same prompts on our server, on plain `ray.serve.llm` and on bare vLLM, each at its best."""
    report: str = ""
    """`paper` judges the serving table of arXiv 2605.25645 instead of measuring."""

    def __post_init__(self) -> None:
        """Check names, numbers and what belongs together."""
        for name in ("qps", "concurrency", "prompt_tokens", "output_tokens"):
            values = tuple(getattr(self, name))
            object.__setattr__(self, name, values)
            require(bool(values), f"bench.{name}", list(values), "one or more positive numbers")
            require(len(set(values)) == len(values), f"bench.{name}", list(values), "each value once")
            for value in values:
                require(0 < value < float("inf"), f"bench.{name}", value, "positive numbers")
        WORKLOADS.require("bench.load", self.load)
        for name, allowed in (("cache", CACHES), ("against", AGAINST), ("report", REPORTS)):
            require_choice(f"bench.{name}", getattr(self, name), allowed)
        for name in ("burstiness", "time_scale", "length_scale", "requests", "repeats"):
            require(getattr(self, name) > 0, f"bench.{name}", getattr(self, name), "a positive number")
        for name in ("seconds", "warmup", "slo_ttft_ms", "slo_tpot_ms", "slo_e2e_ms"):
            require(getattr(self, name) >= 0, f"bench.{name}", getattr(self, name), "zero or more")
        require(0 < self.slo_share <= 1, "bench.slo_share", self.slo_share, "over 0, up to 1")
        traced = self.load == TRACE
        require(traced == bool(self.trace), "bench.trace", self.trace, "a file of requests with bench.load=trace, empty otherwise")
        require(not self.search or self.load == RATE, "bench.search", self.search, f"false with bench.load={self.load}")
        web = not self.url or self.url.startswith(("http://", "https://"))
        require(web, "bench.url", self.url, "an OpenAI base URL, e.g. http://127.0.0.1:8000/v1")
        require(not (self.against and self.url), "bench.url", self.url, "empty with bench.against: the job starts what it compares")
        compared = not self.against or self.load == CONCURRENCY
        require(compared, "bench.against", self.against, "bench.load=concurrency beside it (bench=bare sets both)")

    @property
    def slo(self) -> bool:
        """Whether any time has a limit."""
        return bool(self.slo_ttft_ms or self.slo_tpot_ms or self.slo_e2e_ms)
