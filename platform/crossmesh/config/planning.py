"""The group of an experiment that decides what is planned before anything is rented, and what it may cost."""

from dataclasses import dataclass

from crossmesh.errors import require, require_choice
from crossmesh.hardware.chips import PRICE_KINDS

WORKLOADS = ("train", "serve")
COMPILES = ("auto", "never", "always")
REPORTS = ("", "paper")


@dataclass(frozen=True)
class PlanSpec:
    """What is planned, at which prices, within which budget."""

    workload: str = "train"
    """`train` plans the fine-tuning run, `serve` the engine."""
    compile: str = "auto"
    """When a compiler, or a trace without a device, says what the step needs. `auto`: kept answers always, new ones for a single point or
    the two best TPU points of a sweep; `always`: every point that keeps the rules; `never`: the model alone."""
    answers: str = ""
    """A folder at a URL, `gs://bucket/folder`, where answers of compilers are kept for all who have it; empty: on this machine alone."""
    calibrate: bool = True
    """Multiply the model's step times by what own finished runs on that kind of chip measured over what it says of them."""
    gate: bool = True
    """Whether a job whose plan does not work is refused before it starts; `false` says so and starts it."""
    price: str = "on_demand"
    """Kind of price: `on_demand`, `spot`, `flex_start`, `committed_1y` or `committed_3y`."""
    region: str = ""
    """Region of the price; empty: the catalogue's first price of the kind."""
    price_max_age_days: int = 180
    """An older price is said to be stale, and so is one without a date."""
    max_usd: float = 0.0
    """Most that a run may cost; 0: no limit."""
    max_hours: float = 0.0
    """Longest that a run may take; 0: no limit."""
    queue_hours: float = 0.0
    """How long the hardware is waited for before it is there (`train`); it is not paid for."""
    start_minutes: float = 0.0
    """From hardware that is there to the first step (`train`): environments, weights, compilation. It is paid for at each start."""
    interruptions_per_day: float = 0.0
    """How often hardware is taken in a day in which it is there (`train`): spot nodes that are reclaimed, faults. Each costs another start
    and half of what is done between checkpoints."""
    outage_minutes: float = 0.0
    """How long it is gone then; it is not paid for."""
    spot_trace: str = ""
    """A file that says how many nodes of such hardware were there at equal intervals, in the form of SkyPilot's spot traces; instead of
    `interruptions_per_day` and `outage_minutes`."""
    sweep_max_usd: float = 0.0
    """Most that all runs of a sweep may cost together; 0: no limit."""
    sweep_max_hours: float = 0.0
    """Longest that all runs of a sweep may take together, one after another; 0: no limit."""
    mean_tokens: float = 0.0
    """Mean length of a row; 0: as long as `data.max_length`. `crossmesh lengths` measures it."""
    p99_tokens: float = 0.0
    """Length that 99 of 100 rows do not exceed; 0: twice the mean."""
    loss_share: float = 1.0
    """Part of the tokens that carries loss: those of the assistant's turns."""
    prompt_tokens: int = 1024
    """Prompt of a request (`serve`), the mean with `prompt_p99_tokens`."""
    output_tokens: int = 512
    """Answer of a request (`serve`), the mean with `output_p99_tokens`."""
    prompt_p99_tokens: int = 0
    """Length that 99 of 100 prompts do not exceed; 0: all are `prompt_tokens` long."""
    output_p99_tokens: int = 0
    """Length that 99 of 100 answers do not exceed; 0: all are `output_tokens` long."""
    requests: int = 0
    """Requests that are answered at once (`serve`); 0: as many as `serve.max_num_seqs` and the memory allow."""
    qps: float = 0.0
    """Requests that arrive each second (`serve`), at random times, or those of `trace` drawn closer or apart; 0: none are simulated, or
    `trace` as it is."""
    trace: str = ""
    """Requests to simulate (`serve`), a file as `bench.trace` takes it."""
    duration: float = 600.0
    """Seconds over which requests arrive; 0: all of `trace`."""
    seed: int = 0
    """Of arrivals and lengths."""
    report: str = ""
    """`paper` recomputes arXiv 2605.25645 instead of planning one point."""

    def __post_init__(self) -> None:
        """Check names and numbers."""
        require_choice("plan.workload", self.workload, WORKLOADS)
        require_choice("plan.compile", self.compile, COMPILES)
        require_choice("plan.price", self.price, PRICE_KINDS)
        require_choice("plan.report", self.report, REPORTS)
        for name in ("max_usd", "max_hours", "sweep_max_usd", "sweep_max_hours", "mean_tokens", "p99_tokens"):
            require(getattr(self, name) >= 0, f"plan.{name}", getattr(self, name), "zero (not set) or a positive number")
        for name in ("queue_hours", "start_minutes", "interruptions_per_day", "outage_minutes"):
            require(getattr(self, name) >= 0, f"plan.{name}", getattr(self, name), "zero (not counted) or a positive number")
        twice = bool(self.spot_trace and (self.interruptions_per_day or self.outage_minutes))
        require(not twice, "plan.spot_trace", self.spot_trace, "empty with plan.interruptions_per_day or plan.outage_minutes")
        require(0 < self.loss_share <= 1, "plan.loss_share", self.loss_share, "over 0, up to 1")
        require(self.price_max_age_days >= 0, "plan.price_max_age_days", self.price_max_age_days, "zero or more days")
        require(self.prompt_tokens > 0, "plan.prompt_tokens", self.prompt_tokens, "a positive number")
        require(self.output_tokens > 0, "plan.output_tokens", self.output_tokens, "a positive number")
        require(self.requests >= 0, "plan.requests", self.requests, "0 for as many as fit, or a positive number")
        self._check_load()
        ordered = not self.p99_tokens or self.p99_tokens >= self.mean_tokens
        require(ordered, "plan.p99_tokens", self.p99_tokens, f"plan.mean_tokens={self.mean_tokens:g} at least")

    def _check_load(self) -> None:
        """Check what is simulated."""
        for name in ("prompt", "output"):
            mean, p99 = getattr(self, f"{name}_tokens"), getattr(self, f"{name}_p99_tokens")
            require(not p99 or p99 >= mean, f"plan.{name}_p99_tokens", p99, f"0, or plan.{name}_tokens={mean} at least")
        require(self.qps >= 0, "plan.qps", self.qps, "0 (not set) or a positive number of requests a second")
        require(self.seed >= 0, "plan.seed", self.seed, "zero or more")
        whole = self.duration > 0 or (self.duration == 0 and bool(self.trace or not self.qps))
        require(whole, "plan.duration", self.duration, "a positive number of seconds, or 0 with plan.trace")
        simulated = self.qps or self.trace
        require(not (simulated and self.requests), "plan.requests", self.requests, "0 with plan.qps or plan.trace")
