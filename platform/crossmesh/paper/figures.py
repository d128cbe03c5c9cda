"""arXiv 2605.25645 recomputed from the catalogue: each of its figures beside ours, and what does not fit together. Pure arithmetic.

Its tables are data here, in our own words; what crossmesh plans for the same run is `planned_runs.py`.
"""

import math
from dataclasses import dataclass

from crossmesh.errors import InputError
from crossmesh.hardware.catalogue import find_slice
from crossmesh.hardware.chips import Price
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.model import planned_model
from crossmesh.plan.serving.engine import ttft_bound_s
from crossmesh.plan.serving.point import ServingPoint

ROW_TOKENS, SEQUENCE = 922.0, 3072
"""Mean length of a row, and the length that every row is padded to."""
_TOLERANCE = 0.01
"""Differences up to this are rounding of what was printed."""
_PROBLEMS = 156
"""Problems of verilog-eval that pass@1 is taken over."""
_LONGEST_PROMPT = 15_360


@dataclass(frozen=True)
class PaperTraining:
    """One row of its training table."""

    hardware: str
    """Name of the slice in the catalogue."""
    hours: float
    tokens_per_s: float
    """Real ones."""
    sample_s: float
    usd: float
    usd_per_million: float
    samples: int
    """Steps times 8."""
    pass_at_1: float


TPU = PaperTraining("tpu_v5p_8", 3.34, 763, 1.21, 56.11, 6.10, 1244 * 8, 0.6410)
GPU = PaperTraining("gpu_2xh100", 5.39, 486, 1.94, 119.23, 12.68, 1250 * 8, 0.6974)
_SERVED = (
    ("tpu_v6e_8", "512/256 burst", 1403, 4.27),
    ("tpu_v6e_8", "4096/512", 1206, 4.95),
    ("gpu_2xh100", "512/256 burst", 1490, 4.13),
    ("gpu_2xh100", "4096/512", 728, 8.44),
)
"""Slice, prompt/answer, peak output tokens/s, USD per million output tokens."""
_OWNED = {1: (77.63, 141.35), 8: (228.27, 296.19), 24: (572.59, 650.11)}
"""Training and so many hours of serving: USD on TPU, on GPU."""
_FIRST_TOKEN = (("tpu_v6e_8", 8, 0.062), ("gpu_2xh100", 2, 0.099))
"""Slice, tensor parallelism, seconds to the first token of a prompt of about 16,000 tokens."""


@dataclass(frozen=True)
class Line:
    """A figure of the paper beside ours."""

    what: str
    theirs: float
    ours: float
    unit: str
    note: str = ""
    """How ours is made, or what is inconsistent."""
    impossible: bool = False
    """Theirs is beyond what physics allows; `ours` is the bound."""

    @property
    def difference(self) -> float:
        """Of theirs from ours, relative."""
        return self.theirs / self.ours - 1

    @property
    def consistent(self) -> bool:
        """Whether they agree up to rounding."""
        return not self.impossible and abs(self.difference) <= _TOLERANCE


def paper_lines() -> tuple[Line, ...]:
    """All figures that follow from others of the paper and from the catalogue."""
    return (*_training(TPU), *_training(GPU), *_serving(), *_ownership(), *_claims(), *_first_tokens())


def paper_usd_per_hour(name: str) -> float:
    """The paper's price of a slice: the catalogue's first. Raises `InputError` where the catalogue has none."""
    return _price(name).usd_per_hour


def unsold_prices() -> dict[str, str]:
    """Why nothing is rented at the paper's price, by slice, where that is so."""
    slices = dict.fromkeys((TPU.hardware, GPU.hardware, *(name for name, *_ in _SERVED)))
    return {name: price.unsold for name in slices if (price := _price(name)).unsold}


def _price(name: str) -> Price:
    price = find_slice(name).price("on_demand")
    if price is None:
        raise InputError(f"The catalogue has no on_demand price for {name}.")
    return price


def _training(run: PaperTraining) -> tuple[Line, ...]:
    name, padding = run.hardware, 1 - ROW_TOKENS / SEQUENCE
    hours, usd = run.sample_s * run.samples / 3600, run.hours * paper_usd_per_hour(name)
    rate, per_million = ROW_TOKENS / run.sample_s, 1e6 * run.usd / (run.tokens_per_s * run.hours * 3600)
    padded = f"padded to {SEQUENCE} they are {SEQUENCE / run.sample_s:,.0f}, of which {padding:.0%} is padding"
    return (
        Line(f"{name}: wall clock", run.hours, hours, "h", f"{run.samples} samples at {run.sample_s} s"),
        Line(f"{name}: training cost", run.usd, usd, "USD", "hours times the catalogue's price"),
        Line(f"{name}: real tokens/s", run.tokens_per_s, rate, "tokens/s", f"{ROW_TOKENS:g} tokens a row; {padded}"),
        Line(f"{name}: USD per 1M tokens trained", run.usd_per_million, per_million, "USD", "cost over tokens/s and hours"),
    )


def _serving() -> tuple[Line, ...]:
    return tuple(
        Line(f"{name}: USD per 1M output tokens, {load}", usd, paper_usd_per_hour(name) / 3600 / rate * 1e6, "USD", f"at {rate} tokens/s")
        for name, load, rate, usd in _SERVED
    )


def _ownership() -> tuple[Line, ...]:
    lines = []
    for hours, (on_tpu, on_gpu) in _OWNED.items():
        for name, run, theirs in (("tpu_v6e_8", TPU, on_tpu), ("gpu_2xh100", GPU, on_gpu)):
            ours = run.hours * paper_usd_per_hour(run.hardware) + hours * paper_usd_per_hour(name)
            lines.append(Line(f"{run.hardware} + {hours} h of {name}", theirs, ours, "USD", "training and serving"))
    return tuple(lines)


def _claims() -> tuple[Line, ...]:
    day = _OWNED[24][1] / _OWNED[24][0]
    hour = _OWNED[1][1] / _OWNED[1][0]
    gap = GPU.pass_at_1 - TPU.pass_at_1
    error = math.sqrt(sum(run.pass_at_1 * (1 - run.pass_at_1) / _PROBLEMS for run in (TPU, GPU)))
    return (
        Line(
            "TPU cheaper for a day of serving, times", 1.82, day, "x", f"1.82 is the row of 1 hour ({hour:.2f}); that of 24 hours is this"
        ),
        Line("chips of v5p-16", 16, find_slice("tpu_v5p_16").device.chip_count(), "chips", "v5p counts cores, two a chip"),
        Line("sequence length", 4096, SEQUENCE, "tokens", "the text says 4096, the code 3072"),
        Line(
            "pass@1 gap in standard errors of a difference",
            gap / error,
            1.96,
            "",
            f"{100 * gap:.1f} points over {_PROBLEMS} problems; below 1.96 two equal models show it often",
        ),
    )


def _first_tokens() -> tuple[Line, ...]:
    architecture = parse_architecture(architecture_config("gemma4_31b"), "gemma4_31b.json")
    lines = []
    for name, tp, theirs in _FIRST_TOKEN:
        engine = ServingPoint(
            planned_model(architecture, ()), find_slice(name), tp, "bfloat16", "bfloat16", 16384, 1, 0.9, _LONGEST_PROMPT, 512, 1, 8192
        )
        bound = ttft_bound_s(engine, _LONGEST_PROMPT)
        lines.append(
            Line(
                f"{name}: first token of a {_LONGEST_PROMPT}-token prompt",
                theirs,
                bound,
                "s",
                f"ours is the physical bound: theirs needs {bound / theirs:.0%} of peak FLOP/s; likely a warm prefix cache",
                impossible=theirs < bound,
            )
        )
    return tuple(lines)
