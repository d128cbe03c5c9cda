"""The group of an experiment that says how a model is evaluated."""

from dataclasses import dataclass

from crossmesh.errors import InputError, require, require_choice

TASKS = ("rtl", "verilog_eval", "problems", "lm_eval")
_SAMPLING = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 160}
"""Of tasks that have no settings of their own."""
VARIANTS = ("spec_to_rtl", "code_complete")


@dataclass(frozen=True)
class EvalSpec:
    """A task, how answers are sampled and how untrusted answers are run."""

    task: str = "rtl"
    """`rtl`: the generated dataset of the group `data`; `verilog_eval`: the folder `path`; `problems`: a benchmark of one's own in `path`;
    `lm_eval`: lm-evaluation-harness on `tasks`."""
    path: str = ""
    """Folder of the task: a checkout of verilog-eval; of `problems` a folder of problem folders, or a JSONL file; for lm_eval, where it
    looks for task files beside its own."""
    success_text: str = "Your Design Passed"
    """Of `problems`: text that a testbench prints when every check held, and only then (RTLLM's)."""
    variant: str = "spec_to_rtl"
    """Of verilog_eval: `spec_to_rtl` or `code_complete`."""
    tasks: tuple[str, ...] = ()
    """Names of tasks of lm-evaluation-harness."""
    only: str = ""
    """`references`: judge the task's own solutions and ask no model."""
    url: str = ""
    """OpenAI-compatible endpoint to ask; empty: a server is started for the model and `serve.adapters`."""
    model: str = ""
    """Model id at `url`; empty: the first that it lists."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable with the key of `url`."""
    samples: int = 1
    """Answers per problem."""
    k: tuple[int, ...] = (1,)
    """The k of pass@k; each at most `samples`."""
    temperature: float | None = None
    """None (`null`): with lm_eval what the task says, else 0 (greedy)."""
    top_p: float | None = None
    """None: with lm_eval what the task says, else 1."""
    max_tokens: int | None = None
    """Largest number of tokens of an answer. None: with lm_eval what the task says (`max_gen_toks`), else 160."""
    seed: int = 0
    concurrency: int = 16
    """Requests in flight at once."""
    sandbox: str = "bubblewrap"
    """`bubblewrap`, or `none` to run generated code unprotected."""
    timeout_s: float = 10.0
    """CPU seconds that one simulation may take; of wall clock ten times as many."""
    memory_mib: int = 512
    workers: int = 2
    """Simulations at once."""

    def __post_init__(self) -> None:
        """Check sampling and limits."""
        object.__setattr__(self, "k", tuple(self.k))
        object.__setattr__(self, "tasks", tuple(self.tasks))
        require_choice("eval.task", self.task, TASKS)
        fits = bool(self.success_text) and not set(self.success_text) & set('"\\%\n')
        require(fits, "eval.success_text", self.success_text, "a text without quotes, backslashes and %, as it stands in the testbenches")
        require_choice("eval.variant", self.variant, VARIANTS)
        require_choice("eval.only", self.only, ("", "references"))
        require_choice("eval.sandbox", self.sandbox, ("bubblewrap", "none"))
        require(self.samples > 0, "eval.samples", self.samples, "a positive number")
        require(bool(self.k), "eval.k", list(self.k), f"one or more of 1 to eval.samples={self.samples}")
        for k in self.k:
            require(0 < k <= self.samples, "eval.k", k, f"1 to eval.samples={self.samples}")
        for name, value in _SAMPLING.items() if self.task != "lm_eval" else ():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        temperature, top_p, max_tokens = self.temperature, self.top_p, self.max_tokens
        require(temperature is None or temperature >= 0, "eval.temperature", temperature, "zero (greedy) or more")
        varied = self.samples == 1 or temperature is None or temperature > 0
        require(varied, "eval.samples", self.samples, "1 when eval.temperature=0: greedy answers are all equal")
        require(top_p is None or 0 < top_p <= 1, "eval.top_p", top_p, "over 0, up to 1")
        require(max_tokens is None or max_tokens > 0, "eval.max_tokens", max_tokens, "a positive number")
        for name in ("concurrency", "timeout_s", "memory_mib", "workers"):
            require(getattr(self, name) > 0, f"eval.{name}", getattr(self, name), "a positive number")
        self._check_harness()

    def _check_harness(self) -> None:
        """Check what lm-evaluation-harness can do."""
        if self.task != "lm_eval":
            require(not self.tasks, "eval.tasks", list(self.tasks), "none, unless eval.task=lm_eval")
            return
        require(self.samples == 1, "eval.samples", self.samples, "1 with eval.task=lm_eval: its tasks say how often they ask")
        if self.only:
            raise InputError(f"eval.only={self.only} with eval.task=lm_eval: its tasks have no solutions to run. Leave it out.")
