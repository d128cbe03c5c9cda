"""The tables of a report, made of quantities and winners: few variants stand side by side, many under each other. Pure.

How a table looks is `html`'s, `markdown`'s and `tables`'.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from crossmesh.metrics import HIGHER, NEITHER
from crossmesh.report.gate.comparable import Comparison
from crossmesh.report.tables.cells import BEST, Column, Table, TableCell, missing
from crossmesh.report.tables.examples import by_kind
from crossmesh.report.tables.ownership import break_evens, ownership
from crossmesh.report.tables.quantities import quantities
from crossmesh.report.tables.quantity import COST, EVALUATION, NOT_TRAINED, SERVED, TRAINING, Quantity
from crossmesh.report.variants import Results, Variant
from crossmesh.report.winners import ONE_RUN, SHOWN, SINGLE, Winner, winners

MOST_ROWS = 200
"""Of more runs, groups or winners the first so many are rows; `report.json` has all."""
_SIDE_BY_SIDE = 4
"""Up to so many variants are columns."""
_REASONS = 3
_SETTINGS = 6
"""Settings that differ and get a column of their own."""
_TITLES = {TRAINING: "Training", EVALUATION: "Evaluation", SERVED: "Serving", COST: "Cost"}
_ALL_EMPTY = {EVALUATION: "No model was evaluated.", SERVED: "No server was benchmarked."}


@dataclass(frozen=True)
class Computed:
    """All that was computed of the results, once."""

    quantities: tuple[Quantity, ...]
    winners: tuple[Winner, ...]
    break_evens: tuple[str, ...]

    def of(self, section: str) -> tuple[Quantity, ...]:
        """The quantities of a section."""
        return tuple(one for one in self.quantities if one.section == section)


def computed(results: Results, comparison: Comparison) -> Computed:
    """Compute quantities, winners and break-evens."""
    found = (*quantities(results), *ownership(results))
    return Computed(found, winners(results, comparison, found), break_evens(results))


def tables(results: Results, comparison: Comparison, found: Computed) -> tuple[Table, ...]:
    """Return the tables in the order they are shown."""
    made = []
    for section in (TRAINING, EVALUATION, SERVED, COST):
        own = tuple(one for one in found.of(section) if one.estimates)  # What nobody has is said in a line (`gaps`).
        if not own or (section == SERVED and not any(one.serving for one in results.variants)):
            continue
        if section == SERVED:
            made.append(_loads(results, own, found))
        elif len(results.variants) <= _SIDE_BY_SIDE:
            made.append(_side_by_side(results, section, own, found))
        else:
            made.append(_under_each_other(results, comparison, section, own, found))
    if (kinds := by_kind(results)) is not None:
        made.append(kinds)
    if len(results.variants) > _SIDE_BY_SIDE and found.winners:
        made.insert(0, _winner_table(comparison, found))
    return tuple(made)


def gaps(found: Computed) -> tuple[str, ...]:
    """Say of each section and each column that is left out because nobody has a number why that is so."""
    said = [words for section, words in _ALL_EMPTY.items() if not any(q.estimates for q in found.of(section))]
    lacking: dict[str, list[str]] = {}
    for quantity in (*found.of(TRAINING), *found.of(COST)):
        if not quantity.estimates:
            reasons = dict.fromkeys(cell.text for cell in quantity.cells.values() if cell.text != NOT_TRAINED)
            lacking.setdefault("; ".join(list(reasons)[:_REASONS]) or NOT_TRAINED, []).append(quantity.label)
    said += [f"{', '.join(labels)}: {reason}." for reason, labels in lacking.items()]
    return tuple(said)


def _side_by_side(results: Results, section: str, own: tuple[Quantity, ...], found: Computed) -> Table:
    """A row a quantity, a column a variant, and who wins."""
    rows = []
    for quantity in own:
        cells = _marked(quantity, found)
        label = TableCell(quantity.label, quantity.unit, detail=quantity.how)
        rows.append((label, *(cells[one.name] for one in results.variants), _won(quantity, found)))
    columns = (Column("Quantity"), *(Column(one.name, number=True) for one in results.variants), Column("Best, by how much", wide=True))
    return Table(section, _TITLES[section], _caption(section), columns, tuple(rows), sortable=False)


def _under_each_other(results: Results, comparison: Comparison, section: str, own: tuple[Quantity, ...], found: Computed) -> Table:
    """A row a variant, a column a quantity; what differs in its settings stands before them."""
    shown = tuple(one for one in own if one.estimates)
    settings = comparison.subject[:_SETTINGS] if section == TRAINING else ()  # Elsewhere the names say them.
    letters = {name: group.letter for group in comparison.groups for name in group.names}
    several = len(comparison.groups) > 1
    marked = {quantity.key: _marked(quantity, found) for quantity in shown}
    rows = []
    variants, left = _leading(results, shown)
    for variant in variants:
        head = [TableCell(variant.name)]
        if several:
            head.append(TableCell(letters.get(variant.name, "")))
        head += [_setting(one.values.get(variant.name, "")) for one in settings]
        rows.append((*head, *(marked[quantity.key][variant.name] for quantity in shown)))
    columns = [Column("Run", wide=True), *([Column("Group")] if several else [])]
    columns += [Column(_setting_name(one.key), number=_numeric(one.values), minor=True) for one in settings]
    columns += [Column(one.label, one.unit, one.how, number=True) for one in shown]
    return Table(section, _TITLES[section], f"{_caption(section)}{left}", tuple(columns), tuple(rows))


def _leading(results: Results, shown: tuple[Quantity, ...]) -> tuple[Sequence[Variant], str]:
    """The variants that are rows, in their order, and what is left out: of very many those that come first in the leading quantity."""
    if len(results.variants) <= MOST_ROWS:
        return results.variants, ""
    by = next((one for one in shown if one.better != NEITHER), shown[0])
    sign = -1 if by.better == HIGHER else 1
    untrained = {one.name for one in results.variants if one.training is None}

    def rank(variant: Variant) -> tuple[bool, float]:
        estimate = by.estimates.get(variant.name)
        known = estimate is not None and estimate.value == estimate.value
        return variant.name not in untrained, sign * estimate.value if estimate is not None and known else math.inf

    kept = {one.name for one in sorted(results.variants, key=rank)[:MOST_ROWS]}
    said = f" Of {len(results.variants):,} rows these {MOST_ROWS} come first by {by.label.lower()}; report.json has all."
    return [one for one in results.variants if one.name in kept], said


def _loads(results: Results, own: tuple[Quantity, ...], found: Computed) -> Table:
    """A row for each load and server."""
    names = list(dict.fromkeys(quantity.key.partition("/")[0] for quantity in own))
    heads = {quantity.key.partition("/")[0]: quantity for quantity in own}
    by_key = {quantity.key: _marked(quantity, found) for quantity in own}
    rows = []
    for load in dict.fromkeys(quantity.load for quantity in own):
        for variant in results.variants:
            if not variant.serving:
                continue
            cells = [by_key.get(f"{name}/{load}", {}).get(variant.name, missing("not measured")) for name in names]
            rows.append((TableCell(load), TableCell(variant.name), *cells))
    columns = (
        Column("Load", "tokens in/out"),
        Column("Server of"),
        *(Column(heads[name].label, heads[name].unit, number=True) for name in names),
    )
    return Table(SERVED, _TITLES[SERVED], _caption(SERVED), columns, tuple(rows))


def _winner_table(comparison: Comparison, found: Computed) -> Table:
    """A row a quantity and class of comparable variants."""
    letters = {name: group.letter for group in comparison.groups for name in group.names}
    rows = []
    shown = _of_each(found.winners)
    left = (
        f" Of {len(found.winners):,} rows these are of the largest groups; report.json has all." if len(shown) < len(found.winners) else ""
    )
    for one in shown:
        best, second = one.quantity.cells[one.best], one.quantity.cells[one.second]
        group = letters.get(one.best, "")
        compared = f"{len(one.names)} runs" + (f" of group {group}" if group and len(comparison.groups) > 1 else "")
        where = f"{one.quantity.load}: " if one.quantity.load else ""
        rows.append(
            (
                TableCell(f"{where}{one.quantity.label}", one.quantity.unit),
                TableCell(compared),
                TableCell(one.best, "" if one.verdict in (SHOWN, SINGLE) else one.verdict),
                best,
                replace(second, note=one.second),
                TableCell(
                    one.words if one.verdict != ONE_RUN else one.why, one.margin.method or "without an interval", value=one.margin.value
                ),
            )
        )
    columns = (
        Column("Quantity"),
        Column("Compared"),
        Column("Best", wide=True),
        Column("Its value", number=True),
        Column("Next", wide=True),
        Column("Margin", wide=True),
    )
    caption = "The best of each quantity among runs that may be compared, and how far the next one is behind."
    return Table("winners", "Who wins", caption + left, columns, tuple(rows))


def _of_each(won: tuple[Winner, ...]) -> tuple[Winner, ...]:
    """As many winners as there may be rows, as many of each quantity: those of the largest classes, which come first."""
    if len(won) <= MOST_ROWS:
        return won
    each, taken, kept = max(1, MOST_ROWS // len({one.quantity.key for one in won})), Counter[str](), []
    for one in won:
        taken[one.quantity.key] += 1
        if taken[one.quantity.key] <= each:
            kept.append(one)
    return tuple(kept[:MOST_ROWS])


def _marked(quantity: Quantity, found: Computed) -> dict[str, TableCell]:
    """The cells, with the best of each class marked where it is more than equal."""
    best = {one.best for one in found.winners if one.quantity.key == quantity.key and one.verdict in (SHOWN, SINGLE)}
    return {name: replace(cell, state=BEST) if name in best else cell for name, cell in quantity.cells.items()}


def _won(quantity: Quantity, found: Computed) -> TableCell:
    if quantity.better == NEITHER:
        return TableCell("")
    said = [one for one in found.winners if one.quantity.key == quantity.key]
    if said:
        notes = dict.fromkeys(one.margin.method or (SINGLE if one.verdict == SINGLE else "") for one in said)
        return TableCell("; ".join(one.sentence for one in said), "; ".join(note for note in notes if note))
    known = len(quantity.estimates)
    return missing("" if known == 0 else "nothing to compare with" if known == 1 else "not compared")


def _setting_name(key: str) -> str:
    return key.removeprefix("mesh.").replace("batch_micro", "micro-batch")


def _setting(text: str) -> TableCell:
    return TableCell(text, value=_number(text))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _numeric(values: Mapping[str, str]) -> bool:
    return all(_number(value) is not None for value in values.values())


def _caption(section: str) -> str:
    said = {
        TRAINING: "Under each number stands its 95% interval, where there is one, and its source.",
        EVALUATION: "Models are compared problem by problem where both answered the same ones.",
        SERVED: "By length of prompt and answer. A flagged load is not plausible: it is shown and enters no comparison.",
        COST: "At published prices of the whole slice; loading, checkpoints and export are not counted.",
    }
    return said[section]


def difference_rows(comparison: Comparison, names: int) -> Iterator[tuple[str, str, list[tuple[str, str]], str]]:
    """(scope, key, [(value, who has it)], what it means) of each difference."""
    for one in comparison.differences:
        values = [(value, _who(owners, names)) for value, owners in one.by_value.items()]
        yield one.scope, one.key, values, one.effect


def _who(owners: list[str], names: int) -> str:
    if names <= _SIDE_BY_SIDE or len(owners) <= 2:
        return ", ".join(owners)
    return f"{len(owners)} runs"
