"""The group of an experiment that says how a model is evaluated."""

from dataclasses import dataclass

from crossmesh.errors import require, require_choice


@dataclass(frozen=True)
class EvalSpec:
    """A task, how answers are sampled and how untrusted answers are run."""

    task: str = "rtl"
    samples: int = 1
    """Answers per problem."""
    k: tuple[int, ...] = (1,)
    """The k of pass@k; each at most `samples`."""
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 160
    seed: int = 0
    concurrency: int = 16
    """Requests in flight at once."""
    sandbox: str = "bubblewrap"
    """`bubblewrap`, or `none` to run generated code unprotected."""
    timeout_s: float = 10.0
    """Wall-clock limit of one simulation."""
    memory_mib: int = 512
    workers: int = 2
    """Simulations at once."""

    def __post_init__(self) -> None:
        """Check sampling and limits."""
        object.__setattr__(self, "k", tuple(self.k))
        require_choice("eval.task", self.task, ("rtl",))
        require_choice("eval.sandbox", self.sandbox, ("bubblewrap", "none"))
        require(self.samples > 0, "eval.samples", self.samples, "a positive number")
        require(bool(self.k), "eval.k", list(self.k), f"one or more of 1 to eval.samples={self.samples}")
        for k in self.k:
            require(0 < k <= self.samples, "eval.k", k, f"1 to eval.samples={self.samples}")
        require(self.temperature >= 0, "eval.temperature", self.temperature, "zero (greedy) or more")
        varied = self.samples == 1 or self.temperature > 0
        require(varied, "eval.samples", self.samples, "1 when eval.temperature=0: greedy answers are all equal")
        require(0 < self.top_p <= 1, "eval.top_p", self.top_p, "over 0, up to 1")
        for name in ("max_tokens", "concurrency", "timeout_s", "memory_mib", "workers"):
            require(getattr(self, name) > 0, f"eval.{name}", getattr(self, name), "a positive number")
