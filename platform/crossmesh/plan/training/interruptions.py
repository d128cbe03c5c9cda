"""What a run takes from asking for hardware to its last step: the queue, its starts, waiting for nodes that were taken, steps taken again.

A stage without a source is not counted, and the forecast says which are. Pure functions; `parse_trace` reads what has been measured of a
kind of spot machine.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossmesh.config.planning import PlanSpec
from crossmesh.errors import InputError
from crossmesh.plan.point import TrainingPoint

HOUR = 3600
_DAY = 24.0


@dataclass(frozen=True)
class Availability:
    """How often hardware is taken, and for how long."""

    per_hour: float
    """Interruptions in an hour in which it is there."""
    outage_hours: float
    """Mean time until it is there again."""
    source: str


@dataclass(frozen=True)
class Stages:
    """Hours of a run by stage, each with where it comes from."""

    hours: dict[str, float]
    """`queue`, `start`, `steps`, `waiting`, `restart`, `repeated`; a stage that is not counted is not there."""
    sources: dict[str, str]
    interruptions: float = 0.0
    """How many are expected."""

    @property
    def wall(self) -> float:
        """From asking for hardware to the last step."""
        return sum(self.hours.values())

    @property
    def paid(self) -> float:
        """Hours in which hardware is there, whatever it does."""
        return sum(value for name, value in self.hours.items() if name not in ("queue", "waiting"))


def availability(plan: PlanSpec, nodes: int) -> Availability | None:
    """What `plan` says of a run on `nodes` nodes that needs all of them; None when it says nothing."""
    if plan.spot_trace:
        return parse_trace(Path(plan.spot_trace), nodes)
    if plan.interruptions_per_day:
        outage = plan.outage_minutes / 60
        return Availability(plan.interruptions_per_day / _DAY, outage, "plan.interruptions_per_day, plan.outage_minutes")
    return None


def stages(point: TrainingPoint, step_s: float, plan: PlanSpec, availability: Availability | None) -> Stages | None:
    """The stages of a run whose steps take `step_s`; None where it is interrupted faster than it gets on.

    Each interruption costs a start and, on average, half of what is done between checkpoints, in hours that may be interrupted too:
    up = (start + steps) / (1 - rate x (start + checkpoint / 2)), the first order of J. T. Daly (2006, doi:10.1016/j.future.2004.11.016).
    """
    steps, start = point.steps * step_s / HOUR, plan.start_minutes / 60
    between = point.checkpoint_steps * step_s / HOUR
    if point.checkpoint_minutes:
        between = min(between, point.checkpoint_minutes / 60)
    repeated = min(between, steps) / 2
    given = {
        "queue": (plan.queue_hours, "plan.queue_hours"),
        "start": (start, "plan.start_minutes"),
        "steps": (steps, "the plan's step time"),
    }
    rate = 0.0
    if availability:
        left = 1 - availability.per_hour * (start + repeated)
        if left <= 0:
            return None
        rate = availability.per_hour * (start + steps) / left
        given["waiting"] = (rate * availability.outage_hours, availability.source)
        given["restart"] = (rate * start, f"{availability.source}; plan.start_minutes")
        given["repeated"] = (rate * repeated, f"{availability.source}; half of what is done between checkpoints")
    counted = {name: both for name, both in given.items() if both[0] or name == "steps"}
    return Stages({name: hours for name, (hours, _) in counted.items()}, {name: source for name, (_, source) in counted.items()}, rate)


def parse_trace(path: Path, nodes: int) -> Availability:
    """Read how many nodes were there at equal intervals: `{"metadata": {"gap_seconds": 300}, "data": [4, 4, 0, ...]}`.

    The form is that of SkyPilot's spot traces (Wu et al., "Can't Be Late", NSDI 2024). A run is up while `nodes` nodes are there. What
    the trace begins with and what it ends with may be cut off, so outages are counted whole: only those that end within it.

    Raises `InputError` for a file that does not exist or is of another form, or in which `nodes` nodes are never there.
    """
    try:
        contents: Any = json.loads(path.read_text(encoding="utf-8"))
        gap, data = float(contents["metadata"]["gap_seconds"]) / HOUR, [int(value) for value in contents["data"]]
        if not gap > 0 or not data:
            raise ValueError("no positive gap_seconds, or no data")
    except OSError as error:
        raise InputError(f"plan.spot_trace={path} cannot be read ({error.strerror}). Give a file of SkyPilot's spot traces.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"plan.spot_trace={path} is not a trace of available nodes ({type(error).__name__}: {error}). Allowed: "
            '{"metadata": {"gap_seconds": 300}, "data": [4, 4, 0]}, the number of nodes at equal intervals.'
        ) from error
    up = [value >= nodes for value in data]
    if not any(up):
        raise InputError(f"plan.spot_trace={path}: {nodes} nodes are never there, at most {max(data)}. Give another trace or mesh.dcn.")
    losses = [index for index in range(1, len(up)) if up[index - 1] and not up[index]]
    outages = [next((end - index for end in range(index, len(up)) if up[end]), 0) for index in losses]
    ended = [length for length in outages if length]
    if losses and not ended:
        raise InputError(
            f"plan.spot_trace={path}: {nodes} nodes are lost and not there again before it ends, so how long an outage lasts is not in it. "
            "Give a longer trace, or plan.interruptions_per_day and plan.outage_minutes."
        )
    mean = sum(ended) / len(ended) * gap if ended else 0.0
    return Availability(len(losses) / (sum(up) * gap), mean, f"measured over {len(up) * gap / _DAY:.1f} days in {path.name}")
