"""What a comparison is asked for: which runs, what is judged, and what total costs are given for."""

from dataclasses import dataclass, field

from crossmesh.config.job import JobKeys
from crossmesh.config.repeats import check_repeats
from crossmesh.errors import require


@dataclass(frozen=True)
class RegressionLimits:
    """By quantity: the most that a candidate may change for the worse, `-3%` for what should be high, `2%` for what should be low."""

    tokens_per_s: str = ""
    """Real training tokens per second."""
    wall_clock_s: str = ""
    """Time of all steps."""
    final_loss: str = ""
    """Loss of the last step."""
    mfu: str = ""
    """Model FLOP utilization."""
    energy_wh: str = ""
    """Energy of the accelerators."""
    usd: str = ""
    """Cost of the run."""
    usd_per_million_tokens: str = ""
    """Cost of a million tokens trained on."""
    pass_at_1: str = ""
    """Problems solved at the first answer, in points: `-2%` are two points."""
    pass_at_5: str = ""
    """Problems solved by one of five answers."""
    output_tokens_per_s: str = ""
    """Of a server, at the first load of its benchmark."""
    ttft_p50_s: str = ""
    """Time to the first token there."""
    goodput_requests_per_s: str = ""
    """Requests a second within the SLO there."""


@dataclass(frozen=True)
class CompareKeys(JobKeys):
    """Keys of `crossmesh compare`."""

    runs: tuple[str, ...] = ()
    """Run ids of trainings, evaluations or benchmarks, or how they begin."""
    sweep: str = ""
    """Run id of a sweep: all its finished trials."""
    baseline: str = ""
    """Id of the run that `candidate` must not be worse than."""
    candidate: str = ""
    """Id of the run that is judged by `fail_if`."""
    fail_if: RegressionLimits = field(default_factory=RegressionLimits)
    """The most that the candidate may change for the worse; the job exits with 1 where it changed by more, outside its interval."""
    hours: tuple[float, ...] = (1.0, 8.0, 24.0)
    """Hours of serving that total costs are given for."""
    qps: float = 0.0
    """Requests a second that each system must answer within the benchmark's SLO in total costs; 0: one engine, whatever it sustains."""
    repeat: int = 0
    """Interleaved repeats that each compared training is to have; missing ones are made first. Three decide which trains faster."""
    repeat_steps: int = 8
    """Steps of a repeat."""
    folder: str = "outputs/compare"
    """The report goes to a folder of its own in it; relative to where the job is started."""

    def __post_init__(self) -> None:
        """Check what is asked for."""
        super().__post_init__()
        object.__setattr__(self, "runs", tuple(str(run) for run in self.runs))
        object.__setattr__(self, "hours", tuple(float(hours) for hours in self.hours))
        positive = bool(self.hours) and all(hours > 0 for hours in self.hours)
        require(positive, "hours", list(self.hours), "positive numbers of hours, in brackets: [1,8,24]")
        require(self.qps >= 0, "qps", self.qps, "0 or a positive number of requests a second")
        check_repeats("repeat", self.repeat, "repeat_steps", self.repeat_steps)
        both = bool(self.baseline) == bool(self.candidate)
        require(both, "candidate", self.candidate, "baseline=ID and candidate=ID, both or neither")
