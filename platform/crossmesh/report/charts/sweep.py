"""The charts of a sweep: speed by mesh and micro-batch, price against time and quality, speed over devices, total cost over hours."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from crossmesh.config.verdicts import MattersSpec
from crossmesh.hardware.catalogue import slices
from crossmesh.report.charts.runs import Palette, legend
from crossmesh.report.tables.ownership import System, find_system
from crossmesh.report.variants import Results, Variant

_PANELS = 6
DOTS = 500
"""Most dots of a chart."""
_AXES = ("dcn", "data", "fsdp", "tp")


@dataclass(frozen=True)
class SweepPoint:
    """A trained variant as a point of a sweep."""

    name: str
    backend: str
    hardware: str
    mesh: str
    micro: int
    devices: int
    rate: float

    @property
    def panel(self) -> str:
        """What shares a heat map."""
        return f"{self.backend} on {self.hardware}"


def points(results: Results) -> tuple[SweepPoint, ...]:
    """Those whose system record says mesh and micro-batch."""
    found = []
    for variant in results.trained:
        system, training = variant.record.system or {}, variant.training
        mesh = system.get("mesh")
        if training is None or training.tokens_per_s is None or not isinstance(mesh, Mapping) or "batch_micro" not in system:
            continue
        used = [f"{axis} {mesh[axis]}" for axis in _AXES if mesh.get(axis, 1) > 1]
        where = (str(system.get("backend", "")), str(system.get("hardware", "")))
        devices = math.prod(int(mesh.get(axis, 1)) for axis in _AXES)
        found.append(
            SweepPoint(variant.name, *where, " ".join(used) or "1 device", int(system["batch_micro"]), devices, training.tokens_per_s)
        )
    return tuple(found)


def heat_panels(found: Sequence[SweepPoint]) -> dict[str, dict[tuple[str, int], float]]:
    """By panel: the best rate of each mesh and micro-batch; only where either varies, at most six panels."""
    panels: dict[str, dict[tuple[str, int], float]] = {}
    for one in found:
        cells = panels.setdefault(one.panel, {})
        cells[one.mesh, one.micro] = max(cells.get((one.mesh, one.micro), 0.0), one.rate)
    return dict(sorted((name, cells) for name, cells in panels.items() if len(cells) > 1)[:_PANELS])


def heat_height(panels: Mapping[str, Mapping[tuple[str, int], float]]) -> int:
    """CSS pixels of `draw_heat`."""
    return 20 + sum(64 + 40 * len({mesh for mesh, _ in cells}) for cells in panels.values())


def draw_heat(figure: Any, panels: Mapping[str, Mapping[tuple[str, int], float]], palette: Palette) -> None:
    """One panel a backend and hardware: meshes down, micro-batches across, the darker the faster; the fastest is framed."""
    heights = [1.6 + len({mesh for mesh, _ in cells}) for cells in panels.values()]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    rates = [rate for cells in panels.values() for rate in cells.values()]
    low, spread = min(rates), max(rates) - min(rates) or 1.0
    for axis, (name, cells) in zip(axes, panels.items(), strict=True):
        meshes = sorted({mesh for mesh, _ in cells}, key=lambda mesh: (len(mesh.split()), mesh))
        micros = sorted({micro for _, micro in cells})
        best = max(cells, key=lambda key: cells[key])
        for (mesh, micro), rate in cells.items():
            left, row = micros.index(micro), meshes.index(mesh)
            share = 0.08 + 0.5 * (rate - low) / spread
            axis.bar([left], [0.94], bottom=row - 0.47, width=0.97, color=palette.series[2], alpha=share, linewidth=0)
            if (mesh, micro) == best:
                axis.bar([left], [0.94], bottom=row - 0.47, width=0.97, fill=False, edgecolor=palette.ink, linewidth=2)
            axis.annotate(f"{rate:,.0f}", (left, row), ha="center", va="center", color=palette.ink)
        axis.set_title(f"{name}, real tokens/s", loc="left", color=palette.ink, fontsize=figure_size(axis))
        axis.set_xticks(range(len(micros)), [f"micro {micro}" for micro in micros])
        axis.set_yticks(range(len(meshes)), meshes)
        axis.set_xlim(-0.5, len(micros) - 0.5)
        axis.set_ylim(len(meshes) - 0.5, -0.5)
        axis.grid(visible=False)
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="both", length=0, labelcolor=palette.ink)


def figure_size(axis: Any) -> float:
    """Font size of the figure's labels."""
    return float(axis.xaxis.label.get_size())


def _chip(hardware: str) -> str:
    """The kind of chip that a slice is made of; the slice's own name where the catalogue does not know it."""
    known = slices().get(hardware)
    return known.chip.name if known and known.chip else hardware


def scaling_lines(found: Sequence[SweepPoint]) -> dict[str, list[tuple[int, float]]]:
    """By backend and kind of chip: (devices, best rate), where there is more than one number of devices."""
    best: dict[str, dict[int, float]] = {}
    for one in found:
        sizes = best.setdefault(f"{one.backend} on {_chip(one.hardware)}", {})
        sizes[one.devices] = max(sizes.get(one.devices, 0.0), one.rate)
    return {kind: sorted(sizes.items()) for kind, sizes in sorted(best.items()) if len(sizes) > 1}


def draw_measured_scaling(figure: Any, lines: Mapping[str, Sequence[tuple[int, float]]], palette: Palette) -> None:
    """Best real tokens per second by number of devices; dashed is as many times the smallest as there are devices."""
    axis = figure.subplots()
    for number, (kind, sizes) in enumerate(lines.items()):
        color = palette.series[1 + number % (len(palette.series) - 1)]
        first, rate = sizes[0]
        axis.plot([first, sizes[-1][0]], [rate, rate * sizes[-1][0] / first], "--", color=color, linewidth=1, alpha=0.7)
        axis.plot([devices for devices, _ in sizes], [rate for _, rate in sizes], "o-", color=color, label=kind)
    axis.set_xlabel("devices")
    axis.set_ylabel("real tokens/s")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    legend(axis, palette)


@dataclass(frozen=True)
class PricedVariant:
    """A trained variant as an offer: what a million tokens take and cost, and how good it is."""

    name: str
    kind: str
    hours: float
    usd: float | None
    loss: float
    score: float | None


def offers(results: Results, names: Set[str]) -> tuple[PricedVariant, ...]:
    """Of the variants called `names`, which may be compared with each other."""
    return tuple(one for variant in results.trained if variant.name in names and (one := _offer(variant, results)) is not None)


def _offer(variant: Variant, results: Results) -> PricedVariant | None:
    training = variant.training
    if training is None or not training.tokens_per_s:
        return None
    system = variant.record.system or {}
    score = variant.score(results.splits[0]) if results.splits else None
    hours = 1e6 / training.tokens_per_s / 3600
    usd = hours * variant.rent.usd_per_hour if variant.rent.usd_per_hour is not None else None
    kind = f"{system.get('backend', '')} on {system.get('hardware', '')}"
    return PricedVariant(variant.name, kind, hours, usd, training.final_loss, score.value if score else None)


def front(found: Sequence[PricedVariant], matters: MattersSpec = MattersSpec()) -> list[PricedVariant]:  # noqa: B008  # Frozen.
    """Those that no other beats, by time.

    One beats another when it is better by a difference that matters in time or price (or loss, where there are no prices), and worse by
    none in the other. Of those that no difference that matters tells apart the first stays.
    """
    best, undominated = math.inf, []
    for one in sorted(found, key=lambda one: (one.hours, height(one))):
        if height(one) < best:
            best = height(one)
            undominated.append(one)
    kept: list[PricedVariant] = []
    for one in undominated:
        beaten = any(_beats(other, one, matters) for other in undominated if other is not one)
        if not beaten and not any(_same(other, one, matters) for other in kept):
            kept.append(one)
    return kept


def drawn(found: Sequence[PricedVariant]) -> Sequence[PricedVariant]:
    """Those that are dots: all, or of very many as many as can be told apart, evenly by time."""
    if len(found) <= DOTS:
        return found
    ordered = sorted(found, key=lambda one: (one.hours, one.name))
    return [ordered[round(number * (len(ordered) - 1) / (DOTS - 1))] for number in range(DOTS)]


def _steps_ahead(one: PricedVariant, other: PricedVariant, matters: MattersSpec) -> tuple[float, float]:
    """By how much `one` is better than `other` in time and in height, in differences that matter."""
    time = (1 - one.hours / other.hours) / max(matters.speed / 100, 1e-12) if other.hours else 0.0
    if one.usd is None or other.usd is None:
        return time, (other.loss - one.loss) / max(matters.loss, 1e-12)
    return time, (1 - one.usd / other.usd) / max(matters.usd / 100, 1e-12) if other.usd else 0.0


def _beats(one: PricedVariant, other: PricedVariant, matters: MattersSpec) -> bool:
    ahead, behind = _steps_ahead(one, other, matters), _steps_ahead(other, one, matters)
    return max(ahead) >= 1 and max(behind) < 1


def _same(one: PricedVariant, other: PricedVariant, matters: MattersSpec) -> bool:
    return max(*_steps_ahead(one, other, matters), *_steps_ahead(other, one, matters)) < 1


def height(one: PricedVariant) -> float:
    """What is drawn upwards: the price, or the loss where there is none."""
    return one.loss if one.usd is None else one.usd


def draw_offers(figure: Any, found: Sequence[PricedVariant], palette: Palette, matters: MattersSpec) -> None:
    """Price (or loss) against time of a million real tokens; where models were evaluated the area of a dot is what they solve."""
    axis = figure.subplots()
    priced = all(one.usd is not None for one in found)
    for number, kind in enumerate(dict.fromkeys(one.kind for one in found)):
        own = [one for one in drawn(found) if one.kind == kind]
        color = palette.series[1 + number % (len(palette.series) - 1)]
        sizes = [28 if one.score is None else 12 + 170 * one.score for one in own]
        axis.scatter([one.hours for one in own], [height(one) for one in own], s=sizes, color=color, alpha=0.75, linewidths=0, label=kind)
    best = front(found, matters)
    axis.plot(
        [one.hours for one in best],
        [height(one) for one in best],
        "o-",
        color=palette.ink,
        markersize=9,
        markerfacecolor="none",
        linewidth=1.2,
        label="Pareto front",
    )
    axis.margins(0.1)
    axis.set_xlabel("hours for a million real tokens")
    axis.set_ylabel("USD for a million real tokens" if priced else "loss, last step, nats/token")
    axis.set_xlim(left=0)
    if priced:
        axis.set_ylim(bottom=0)
    legend(axis, palette)


def owned(results: Results) -> list[System]:
    """Systems whose total cost is known, where any is served."""
    if not any(variant.serving for variant in results.variants):
        return []
    found = [find_system(variant, results.qps) for variant in results.variants]
    return [one for one in found if isinstance(one, System)][: 2 * _PANELS]


def draw_owned(figure: Any, systems: Sequence[System], hours: float, palette: Palette) -> None:
    """Training and serving together, over hours of serving."""
    axis = figure.subplots()
    for number, one in enumerate(systems):
        color = palette.series[1 + number % (len(palette.series) - 1)]
        axis.plot([0.0, hours], [one.usd(0.0), one.usd(hours)], "-", color=color, linewidth=2, label=one.name)
    axis.set_xlabel("hours of serving")
    axis.set_ylabel("USD, training included")
    axis.set_xlim(0, hours)
    axis.set_ylim(bottom=0)
    legend(axis, palette)
