"""What a system costs altogether: training once, then hours of serving, and from which hour on another one is cheaper. Pure arithmetic."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from crossmesh import metrics
from crossmesh.evaluate.estimates import Estimate
from crossmesh.metrics import DERIVED, LOWER
from crossmesh.report.tables.cells import TableCell, missing
from crossmesh.report.tables.quantity import COST, NOT_TRAINED, Quantity
from crossmesh.report.variants import Results, Variant

GOODPUT = metrics.GOODPUT.name


@dataclass(frozen=True)
class System:
    """A variant with what it costs to have."""

    name: str
    train_usd: float
    serve_usd_per_hour: float
    """Of all engines together."""
    engines: int

    def usd(self, hours: float) -> float:
        """Training and `hours` of serving."""
        return self.train_usd + hours * self.serve_usd_per_hour


def find_system(variant: Variant, qps: float) -> System | str:
    """Return the system of a variant, or why there is none.

    With `qps` requests a second to be answered within the SLO it has as many engines as its goodput asks for; with 0, one.
    """
    if variant.usd is None:
        return NOT_TRAINED if variant.training is None else variant.rent.why
    if variant.serving_rent.usd_per_hour is None:
        return variant.serving_rent.why
    engines = 1
    if qps:
        sustained = max((one.figures[GOODPUT][0] for one in variant.serving if GOODPUT in one.figures and not one.flags), default=0.0)
        if sustained <= 0:
            return "no sound benchmark says what it sustains within the SLO"
        engines = math.ceil(qps / sustained)
    return System(variant.name, variant.usd, engines * variant.serving_rent.usd_per_hour, engines)


def ownership(results: Results) -> Iterator[Quantity]:
    """Total costs after each of the hours asked for; none when nothing is served."""
    found = {variant.name: find_system(variant, results.qps) for variant in results.variants}
    if not any(variant.serving for variant in results.variants):
        return
    load = f"{results.qps:g} requests/s within the SLO" if results.qps else "one engine"
    for hours in results.hours:
        known = {name: one.usd(hours) for name, one in found.items() if isinstance(one, System)}
        cells = {}
        for name, one in found.items():
            if isinstance(one, str):
                cells[name] = missing(one)
            else:
                engines = f"{one.engines} {'engine' if one.engines == 1 else 'engines'}"
                cells[name] = TableCell(f"{one.usd(hours):,.2f}", engines, DERIVED, one.usd(hours))
        estimates = {name: Estimate(value) for name, value in known.items()}
        label = f"Training and {hours:g} h of serving"
        yield Quantity(f"owned_usd/{hours:g}", COST, label, "USD", f"{load}, at list price", LOWER, "cost", cells, estimates)


def break_even_hours(one: System, other: System) -> float | None:
    """Hours of serving after which the two have cost the same; None when one is cheaper from the first hour to the last."""
    slope = one.serve_usd_per_hour - other.serve_usd_per_hour
    ahead = other.train_usd - one.train_usd
    if slope == 0 or ahead / slope <= 0:
        return None
    return ahead / slope


def break_even_words(one: System, other: System) -> str:
    """Say which of the two is cheaper when."""
    hours = break_even_hours(one, other)
    if hours is None:
        first, after = one.usd(1.0), other.usd(1.0)
        if first == after:
            return f"{one.name} and {other.name} cost the same at any hour"
        cheaper, dearer = (one, other) if first < after else (other, one)
        return f"{cheaper.name} is cheaper than {dearer.name} however long it serves"
    later, sooner = (one, other) if one.serve_usd_per_hour < other.serve_usd_per_hour else (other, one)
    return f"{later.name} is cheaper than {sooner.name} from {hours:,.3g} h of serving on, {sooner.name} before"


def break_evens(results: Results) -> tuple[str, ...]:
    """Each system against the one that is cheapest after the longest of the hours asked for."""
    found = [one for variant in results.variants if isinstance(one := find_system(variant, results.qps), System)]
    if len(found) < 2 or not any(variant.serving for variant in results.variants):
        return ()
    best = min(found, key=lambda one: one.usd(max(results.hours)))
    return tuple(break_even_words(best, one) for one in found if one is not best)
