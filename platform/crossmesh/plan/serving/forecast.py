"""The plan of one engine: does it hold the model and the requests, how fast are they answered, what does a million tokens cost."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date

from crossmesh.config.planning import PlanSpec
from crossmesh.hardware.chips import Price
from crossmesh.plan.serving.arrivals import Load
from crossmesh.plan.serving.engine import EngineForecast, engine_forecast, usable_engine_bytes
from crossmesh.plan.serving.load import LoadForecast, load_forecast
from crossmesh.plan.serving.point import ServingPoint
from crossmesh.plan.serving.step import replicated_bytes
from crossmesh.plan.training.exact import broken_serving_rules, replications
from crossmesh.plan.training.forecast import GIB, priced
from crossmesh.plan.training.interruptions import HOUR


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
    load: LoadForecast | None = None
    """How a load of requests fares; None where none was simulated."""

    @property
    def fits(self) -> bool:
        """Whether it keeps all rules and holds one sequence of its longest length at least."""
        return not self.reasons

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of answers a second under the load, or of a full engine where none was simulated."""
        if self.load is not None:
            return self.load.tokens_per_s
        return self.engine.tokens_per_s if self.engine else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of a million tokens of answers, of the whole slice for this one engine."""
        if self.price is None or not self.tokens_per_s:
            return None
        return 1e6 / self.tokens_per_s / HOUR * self.price.usd_per_hour


def serving_forecast(point: ServingPoint, plan: PlanSpec, today: date, load: Load | None = None) -> ServingForecast:
    """Plan the engine at the prices of `plan`, and how `load` fares on it where one is given."""
    price, of_price = priced(point.slice, plan, today)
    warnings = tuple(text for text in (*_replicated(point), *of_price) if text)
    broken = broken_serving_rules(point)
    if broken:
        return ServingForecast(point, None, broken, nearest_fitting_engine(point), price, warnings)
    engine = engine_forecast(point)
    reason = _no_room(point, engine)
    if reason:
        return ServingForecast(point, engine, (reason,), nearest_fitting_engine(point), price, warnings)
    if load is None:
        return ServingForecast(point, engine, (), "", price, warnings)
    fared = load_forecast(point, engine, load)
    return ServingForecast(point, engine, (), "", price, (*warnings, *load.notes, *_saturated(fared)), fared)


def _no_room(point: ServingPoint, engine: EngineForecast) -> str:
    """Why the engine cannot start; vLLM does not without room for one sequence of its longest length."""
    if engine.longest >= point.max_model_len:
        return ""
    shorter = f" The longest that fits is serve.max_model_len={engine.longest}." if engine.longest >= point.prompt + point.output else ""
    return (
        f"A chip may fill {usable_engine_bytes(point) / GIB:.1f} GiB: {engine.weights / GIB:.1f} are weights, {engine.workspace / GIB:.1f} "
        f"workspace, and one sequence of serve.max_model_len={point.max_model_len} needs "
        f"{engine.kv.sequence(point.max_model_len) / GIB:.2f}.{shorter}"
    )


def _saturated(fared: LoadForecast) -> Iterator[str]:
    if fared.saturated:
        yield (
            f"{fared.qps:.3g} requests a second are more than the {fared.sustained_qps:.3g} that the engine sustains: its queue, and "
            "with it the time to the first token, grows as long as they come."
        )


def _replicated(point: ServingPoint) -> Iterator[str]:
    held = replications(point)
    if held and not broken_serving_rules(point):
        kinds = ", ".join(f"{one.heads} key/value heads of layer {one.layer} and its like {one.copies} times" for one in held)
        mib = replicated_bytes(point) / (1 << 20)
        yield f"serve.tp={point.tp} holds {kinds}: {mib:.0f} MiB of weights on each chip, and cache for a whole head."


def nearest_fitting_engine(point: ServingPoint) -> str:
    """Overrides of the nearest engine that fits on this slice: another tp, then an 8-bit cache, then both."""
    for tp in sorted(range(1, point.slice.device.chip_count() + 1), key=lambda tp: abs(tp - point.tp)):
        for kv_dtype in dict.fromkeys((point.kv_dtype, "fp8")):
            other = replace(point, tp=tp, kv_dtype=kv_dtype)
            if other != point and not broken_serving_rules(other) and not _no_room(other, engine_forecast(other)):
                parts = [f"serve.tp={tp}"] if tp != point.tp else []
                return " ".join([*parts, *([f"serve.kv_cache_dtype={kv_dtype}"] if kv_dtype != point.kv_dtype else [])])
    return ""
