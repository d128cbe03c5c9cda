"""The plan of one training run: fit, time, price, what limits it, and if it cannot be, why and what can.

Pure but for `plan.spot_trace`, which is read; well under a millisecond.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from crossmesh.config.planning import PlanSpec
from crossmesh.hardware.catalogue import Slice
from crossmesh.hardware.chips import Price, UnitPrices, unit_prices
from crossmesh.hardware.mesh import MeshShape
from crossmesh.plan.figures import Compiled, Figures, figures, modelled
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.training.calibration import Calibration
from crossmesh.plan.training.efficiency import efficiency
from crossmesh.plan.training.exact import broken_rules
from crossmesh.plan.training.interruptions import HOUR, Stages, availability, stages
from crossmesh.plan.training.roofline import attention_flops, loss_head_flops, matmul_flops

GIB = 1 << 30


@dataclass(frozen=True)
class Forecast:
    """What is known of a run before it is started."""

    point: TrainingPoint
    figures: Figures | None
    """None where a rule is broken: such a step does not exist."""
    reasons: tuple[str, ...]
    """Why it is rejected; empty when it is not."""
    nearest: str
    """For a rejected point, the overrides of the nearest one that fits; empty where none was found."""
    price: Price | None
    warnings: tuple[str, ...]
    calibration: Calibration | None = None
    """Of the step's time."""
    stages: Stages | None = None
    """From asking for hardware to the last step; None without figures, or where the run never ends."""

    @property
    def uncompiled(self) -> bool:
        """Whether it keeps the rules and no compiler has said what it needs."""
        return self.figures is not None and self.figures.compiled is None

    @property
    def fits(self) -> bool:
        """Whether it keeps all rules, fits the memory and is within the budget."""
        return not self.reasons

    @property
    def hours(self) -> float | None:
        """From asking for hardware to the last step, of the stages that are counted: by default the steps alone."""
        return self.stages.wall if self.stages else None

    @property
    def usd(self) -> float | None:
        """Price of the slices for the hours in which they are there; None without a price."""
        if self.stages is None or self.price is None:
            return None
        return self.stages.paid * self.price.usd_per_hour * self.point.mesh.dcn

    @property
    def tokens_per_s(self) -> float | None:
        """Real tokens, padding not counted."""
        return self.point.filling.tokens / self.figures.step_s if self.figures else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of a million real tokens."""
        if self.price is None or not self.tokens_per_s:
            return None
        return 1e6 / self.tokens_per_s / HOUR * self.price.usd_per_hour * self.point.mesh.dcn

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilization: FLOP that the real tokens need once, without what remat repeats, against the peak for the whole step."""
        if self.figures is None:
            return None
        once = replace(self.point, remat="none", attention="flash")
        tokens = self.point.filling.tokens / self.point.mesh.dp_size
        share = self.point.filling.tokens / self.point.filling.computed
        flops = matmul_flops(once, tokens) + attention_flops(once, tokens / share) + loss_head_flops(once)
        return flops / self.figures.step_s / self.point.peak

    @property
    def text(self) -> str:
        """One line on it for the start of a job; empty where there are no figures."""
        figures = self.figures
        if figures is None or self.hours is None:
            return ""
        memory = f"{figures.hbm_bytes / GIB:.1f} of {usable_training_bytes(self.point) / GIB:.1f} GiB a chip ({figures.hbm_source})"
        usd = f", {self.usd:.2f} USD" if self.usd is not None else ""
        rows = f"with rows of {self.point.filling.row_tokens:.0f} tokens"
        against = f". It does not fit: {' '.join(self.reasons)}" if self.reasons else ""
        split = self.stages.hours if self.stages and len(self.stages.hours) > 1 else {}
        stages = f" [{', '.join(f'{name} {value:.2f}' for name, value in split.items())}]" if split else ""
        return f"plan: {memory}, {self.hours:.2f} hours{stages}{usd} ({figures.step_source}) {rows}{against}"

    @property
    def unit(self) -> UnitPrices | None:
        """What the slice costs per unit of what it has."""
        return unit_prices(self.point.chip, self.point.slice.device.chip_count(), self.price) if self.price else None


def usable_training_bytes(point: TrainingPoint) -> float:
    """Memory of a chip that a program can have."""
    return point.chip.hbm_bytes * efficiency(point.slice.device).usable_hbm


def forecast(
    point: TrainingPoint, plan: PlanSpec, today: date, compiled: Compiled | None = None, calibration: Calibration | None = None
) -> Forecast:
    """Plan `point` at the prices and within the budget of `plan`.

    `compiled` is a compiler's or a trace's answer for it, `calibration` what own runs on such chips measured.
    """
    price, of_price = priced(point.slice, plan, today)
    notices = (*of_price, _network_warning(point), calibration.text if calibration else "", *(compiled.warnings if compiled else ()))
    warnings = tuple(text for text in notices if text)
    broken = broken_rules(point)
    if broken:
        return Forecast(point, None, broken, nearest_fitting_training(point), price, warnings)
    step = figures(point, compiled, calibration.factor if calibration else 1.0)
    if step.hbm_bytes > usable_training_bytes(point):
        reason = (
            f"A step needs {step.hbm_bytes / GIB:.1f} GiB on each chip ({step.hbm_source}); of {point.chip.hbm_bytes / GIB:.1f} GiB "
            f"a program can have {usable_training_bytes(point) / GIB:.1f}. Most of it: {_largest(step)}."
        )
        return Forecast(
            point, step, (reason,), nearest_fitting_training(point), price, warnings, calibration, stages(point, step.step_s, plan, None)
        )
    seen = availability(plan, point.mesh.dcn * point.slice.device.hosts)
    taken = stages(point, step.step_s, plan, seen)
    if taken is None:
        reason = (
            f"The run never ends: {seen.per_hour if seen else 0:.2g} interruptions an hour ({seen.source if seen else ''}) cost more than "
            "is done between them. Store checkpoints more often (checkpoint.every_steps, checkpoint.every_minutes) or take other hardware."
        )
        return Forecast(point, step, (reason,), "", price, warnings, calibration)
    return _within_budget(Forecast(point, step, (), "", price, warnings, calibration, taken), plan)


def _within_budget(planned: Forecast, plan: PlanSpec) -> Forecast:
    reasons, rows = [], f"with rows of {planned.point.filling.row_tokens:.0f} tokens"
    if plan.max_hours and planned.hours is not None and planned.hours > plan.max_hours:
        reasons.append(f"The run takes {planned.hours:.2f} hours {rows}, more than plan.max_hours={plan.max_hours:g}.")
    if plan.max_usd and planned.usd is None:
        reasons.append(f"plan.max_usd={plan.max_usd:g}, but there is no price for {planned.point.slice.name}.")
    if plan.max_usd and planned.usd is not None and planned.usd > plan.max_usd:
        reasons.append(f"The run costs {planned.usd:.2f} USD {rows}, more than plan.max_usd={plan.max_usd:g}.")
    return replace(planned, reasons=tuple(reasons))


def _largest(step: Figures) -> str:
    kinds = sorted(step.memory.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{name.replace('_', ' ')} {size / GIB:.1f} GiB" for name, size in kinds)


def priced(slice_: Slice, plan: PlanSpec, today: date) -> tuple[Price | None, tuple[str, ...]]:
    """The price of a slice as `plan` asks for it, None where there is none, and what is to be said of it."""
    price = slice_.price(plan.price, plan.region)
    if price:
        return price, (price.unsold, price.warning(today, plan.price_max_age_days))
    where = f" in {plan.region}" if plan.region else ""
    sold = f" {'; '.join(str(offer) for offer in slice_.offers)}." if slice_.offers else ""
    missing = f"The catalogue has no {plan.price} price for {slice_.name}{where}: nothing is priced."
    return None, (f"{missing}{sold} Give yours in hardware.catalogue.",)


def _network_warning(point: TrainingPoint) -> str:
    if point.mesh.dcn == 1 or point.chip.network_bytes_per_s is not None:
        return ""
    return f"The catalogue does not know the network between slices of {point.chip.name}: a step over several has no time."


def nearest_fitting_training(point: TrainingPoint) -> str:
    """Overrides that lead from a rejected point to the nearest that fits: fewest changes first, among equals the fastest."""
    best: tuple[int, float, str] | None = None
    for changes, candidate in _neighbours(point):
        if best is not None and changes > best[0]:
            break
        if broken_rules(candidate):
            continue
        step = modelled(candidate)
        if step.hbm_bytes <= usable_training_bytes(candidate) and (best is None or step.step_s < best[1]):
            best = (changes, step.step_s, _overrides(point, candidate))
    return best[2] if best else ""


def _neighbours(point: TrainingPoint) -> Iterator[tuple[int, TrainingPoint]]:
    """Points on the same slice, by how many settings differ: mesh, micro-batch, remat."""
    meshes = [point.mesh, *(mesh for mesh in _meshes(point) if mesh != point.mesh)]
    neighbours = []
    for mesh in meshes:
        for micro in dict.fromkeys((point.micro, 1)):
            for remat in dict.fromkeys((point.remat, "layer")):
                changes = (mesh != point.mesh) + (micro != point.micro) + (remat != point.remat)
                if changes:
                    neighbours.append((changes, replace(point, mesh=mesh, micro=micro, remat=remat)))
    return iter(sorted(neighbours, key=lambda one: one[0]))


def _meshes(point: TrainingPoint) -> Iterator[MeshShape]:
    chips = point.slice.device.chip_count()
    divisors = [size for size in range(1, chips + 1) if chips % size == 0]
    for tp in divisors:
        for fsdp in divisors:
            if chips % (tp * fsdp) == 0:
                yield MeshShape(chips // (tp * fsdp), fsdp, tp, point.mesh.dcn)


def _overrides(point: TrainingPoint, other: TrainingPoint) -> str:
    parts = []
    if other.mesh != point.mesh:
        parts.append(f"mesh.data={other.mesh.data} mesh.fsdp={other.mesh.fsdp} mesh.tp={other.mesh.tp}")
    if other.micro != point.micro:
        parts.append(f"batch.micro={other.micro}")
    if other.remat != point.remat:
        parts.append(f"backend.remat={other.remat}")
    return " ".join(parts)


def pareto(forecasts: Sequence[Forecast]) -> tuple[Forecast, ...]:
    """Those of the fitting, priced points that no other beats in both time and price of a real token, fastest first.

    Per token, because points that pack otherwise do other work in as many steps.
    """
    priced = [(1 / one.tokens_per_s, one.usd_per_million_tokens, one) for one in forecasts if one.fits and one.tokens_per_s]
    front: list[tuple[float, Forecast]] = []
    for _, usd, one in sorted(((time, usd, one) for time, usd, one in priced if usd is not None), key=lambda point: point[:2]):
        if not front or usd < front[-1][0]:
            front.append((usd, one))
    return tuple(one for _, one in front)
