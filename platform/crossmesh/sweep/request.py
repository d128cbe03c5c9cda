"""A sweep as it was asked for, and the state that follows from that and from what earlier starts have left."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TypeVar

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.job import Job
from crossmesh.config.points import SweptJob
from crossmesh.config.sweep import SweepKeys, SweepSpec
from crossmesh.errors import InputError
from crossmesh.sweep.search import Search
from crossmesh.sweep.state import Point, SweepState, identity_of, new_points
from crossmesh.sweep.work import Workload

_Keys = TypeVar("_Keys", bound=SweepKeys)

_ON_RAY = "ray"


@dataclass(frozen=True)
class Request:
    """A sweep as it was asked for."""

    verb: str
    identity: str
    """Of the sweep: the same command has the same."""
    base: ExperimentSpec
    """Says where all points are stored and tracked."""
    shared: Mapping[str, str]
    """What the command line says for all points."""
    points: tuple[Point, ...]
    specs: tuple[ExperimentSpec | InputError, ...]
    """Of each point, or why it cannot be."""
    limits: SweepSpec
    output: str
    on_ray: bool
    """Several points at once."""
    force: bool


@dataclass(frozen=True)
class Adaptive:
    """Points that follow from what others came to."""

    search: Search
    compose: Callable[[tuple[str, ...]], ExperimentSpec | InputError]
    """The spec of what a point adds to the command line, or why it cannot be."""
    metric: str
    """Attribute of a step that the search goes by."""


def request_of(verb: str, swept: Sequence[SweptJob[_Keys]], launcher: str, force: Callable[[_Keys], bool]) -> Request:
    """Make one request of the points that Hydra composed.

    Raises `InputError` when none can be, or when they are stored or tracked in several places.
    """
    jobs = [one.job for one in swept]
    valid = [job for job in jobs if isinstance(job, Job)]
    if not valid:
        reasons = list(dict.fromkeys(str(job) for job in jobs))
        raise InputError(f"No point of the sweep is possible. {' '.join(reasons[:3])}")
    places = {(job.spec.storage, job.spec.tracking) for job in valid}
    if len(places) > 1 or len({job.keys.sweep for job in valid}) > 1:
        raise InputError("storage, tracking and sweep.* are those of the whole sweep. Give each of their keys one value.")
    keys, overrides = valid[0].keys, [one.overrides for one in swept]
    if launcher not in ("basic", _ON_RAY):
        raise InputError(f"hydra/launcher={launcher!r} is not possible here. Allowed: basic (one after another), ray (at once).")
    return Request(
        verb,
        identity_of(verb, overrides),
        valid[0].spec,
        by_key(sorted(set.intersection(*map(set, overrides)))),
        new_points(overrides),
        tuple(job.spec if isinstance(job, Job) else job for job in jobs),
        keys.sweep,
        keys.output,
        launcher == _ON_RAY,
        force(keys),
    )


def search_request(verb: str, base: ExperimentSpec, given: tuple[str, ...], limits: SweepSpec, output: str, *, force: bool) -> Request:
    """A request whose points are still to be found, on top of `given` on the command line; as many run at once as there is room for."""
    return Request(verb, identity_of(verb, [given]), base, by_key(given), (), (), limits, output, True, force)


def by_key(overrides: Iterable[str]) -> dict[str, str]:
    """Values by key."""
    return dict(one.partition("=")[::2] for one in overrides)


def check_price(spec: ExperimentSpec, request: Request, workload: Workload) -> None:
    """Refuse a budget in dollars over hardware without a price."""
    if request.limits.max_usd and workload.usd_per_hour(spec) is None:
        if spec.hardware.emulated:
            raise InputError(
                f"sweep.max_usd={request.limits.max_usd:g}, but {spec.hardware.name} is emulated on CPU devices (CROSSMESH_EMULATE=1) and "
                "costs nothing. Set sweep.max_hours."
            )
        raise InputError(
            f"sweep.max_usd={request.limits.max_usd:g}, but the catalogue has no {spec.plan.price} price of {spec.hardware.name}. "
            "Give yours in hardware.catalogue, or set sweep.max_hours."
        )


def price_warnings(specs: Sequence[ExperimentSpec], request: Request, today: date) -> tuple[str, ...]:
    """What is doubtful about the prices that a budget in dollars is counted with: nothing is sold at one, or it is old; each once."""
    if not request.limits.max_usd:
        return ()
    said: dict[str, None] = {}
    for spec in specs:
        if price := spec.hardware.price(spec.plan.price, spec.plan.region):
            words = filter(None, (price.unsold, price.warning(today, spec.plan.price_max_age_days)))
            said |= dict.fromkeys(f"sweep.max_usd={request.limits.max_usd:g} on {spec.hardware.name}: {warning}" for warning in words)
    return tuple(said)


def first_state(request: Request, known: SweepState | None, command: str, *, adaptive: bool) -> SweepState:
    """The state to begin with: what earlier starts cost and how often points failed is remembered."""
    before = {point.key: point for point in known.points} if known else {}
    points = tuple(before.values()) if adaptive else tuple(before.get(point.key, point) for point in request.points)
    if known is None:
        known = SweepState(request.identity, request.verb, request.base.name, command)
    limits = request.limits
    return replace(
        known, points=points, starts=known.starts + 1, over="", command=command, max_usd=limits.max_usd, max_hours=limits.max_hours
    )
