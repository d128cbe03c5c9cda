"""The plan of one engine: does it hold the model and the requests, how fast are they answered, what does a million tokens cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

from crossmesh.hardware.chips import Price
from crossmesh.plan.efficiency import efficiency
from crossmesh.plan.exact import broken_serving_rules, replications
from crossmesh.plan.forecast import GIB, HOUR, priced
from crossmesh.plan.serving import EngineForecast, engine_forecast, replicated_bytes
from crossmesh.plan.serving_point import ServingPoint
from crossmesh.spec.planning import PlanSpec


@dataclass(frozen=True)
class ServingForecast:
    """What is known of an engine before it is started."""

    point: ServingPoint
    engine: EngineForecast | None
    """None where a rule is broken."""
    reasons: tuple[str, ...]
    nearest: str
    price: Price | None
    warnings: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether it keeps all rules and holds one request at least."""
        return not self.reasons

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of a million tokens of answers, of the whole slice for this one engine."""
        if self.engine is None or self.price is None or not self.engine.tokens_per_s:
            return None
        return 1e6 / self.engine.tokens_per_s / HOUR * self.price.usd_per_hour


def usable_bytes(point: ServingPoint) -> float:
    """Memory of a chip that the engine may fill."""
    return point.chip.hbm_bytes * min(point.memory_share, efficiency(point.slice.device).usable_hbm)


def serving_forecast(point: ServingPoint, plan: PlanSpec, today: date) -> ServingForecast:
    """Plan the engine at the prices of `plan`."""
    price, warning = priced(point.slice, plan, today)
    warnings = tuple(text for text in (*_replicated(point), warning) if text)
    broken = broken_serving_rules(point)
    if broken:
        return ServingForecast(point, None, broken, nearest(point), price, warnings)
    engine = engine_forecast(point)
    if engine.sequences:
        return ServingForecast(point, engine, (), "", price, warnings)
    tokens = point.prompt + point.output
    reason = (
        f"A chip may fill {usable_bytes(point) / GIB:.1f} GiB: {engine.weights / GIB:.1f} are weights, {engine.workspace / GIB:.1f} "
        f"workspace, and one sequence of {tokens} tokens needs {engine.kv.sequence(tokens) / GIB:.2f}."
    )
    return ServingForecast(point, engine, (reason,), nearest(point), price, warnings)


def _replicated(point: ServingPoint) -> Iterator[str]:
    held = replications(point)
    if held and not broken_serving_rules(point):
        kinds = ", ".join(f"{one.heads} key/value heads of layer {one.layer} and its like {one.copies} times" for one in held)
        mib = replicated_bytes(point) / (1 << 20)
        yield f"serve.tp={point.tp} holds {kinds}: {mib:.0f} MiB of weights on each chip, and cache for a whole head."


def nearest(point: ServingPoint) -> str:
    """Overrides of the nearest engine that fits on this slice: another tp, then an 8-bit cache, then both."""
    for tp in sorted(range(1, point.slice.device.chip_count() + 1), key=lambda tp: abs(tp - point.tp)):
        for kv_dtype in dict.fromkeys((point.kv_dtype, "fp8")):
            other = replace(point, tp=tp, kv_dtype=kv_dtype)
            if other != point and not broken_serving_rules(other) and engine_forecast(other).sequences:
                parts = [f"serve.tp={tp}"] if tp != point.tp else []
                return " ".join([*parts, *([f"serve.kv_cache_dtype={kv_dtype}"] if kv_dtype != point.kv_dtype else [])])
    return ""
