"""What the numbers say, one answer for each aspect with its reasons: which is better, faster, cheaper, which serves more. Pure.

Nothing is claimed that its interval does not show, and nothing across what the gate keeps apart. The gate is `comparable`, who wins is
`winners`.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossmesh.evaluate.estimates import FEWEST_RUNS, Margin
from crossmesh.installation import job_command
from crossmesh.metrics import FINAL_LOSS, OUTPUT_TOKENS_PER_S, TOKENS_PER_S, USD_PER_MILLION_TOKENS
from crossmesh.report.gate.comparable import ASPECTS, GROUPS, NO, NOTHING, YES, AspectVerdict, Comparison, Difference
from crossmesh.report.tables.quantities import USD_OUTPUT
from crossmesh.report.tables.quantity import SERVED, Quantity
from crossmesh.report.tables.sheets import Computed
from crossmesh.report.variants import Results, Variant, split_name
from crossmesh.report.winners import EQUAL, ONE_RUN, SHOWN, SINGLE, UNDECIDED, Winner, margin_of

GOOD, BAD, NEUTRAL = "good", "bad", "neutral"
_QUESTIONS = {
    "quality": "Which is better?",
    "speed": "Which trains faster?",
    "cost": "Which is cheaper?",
    "serving": "Which serves better?",
}
_NAMED = 3
_SHORT_ID = 12
"""Of 32 letters so many tell a run apart among millions."""


@dataclass(frozen=True)
class AspectFinding:
    """One aspect with its answer."""

    aspect: str
    question: str
    verdict: str
    """Of the gate: whether there may be an answer."""
    answer: str
    reasons: tuple[str, ...]
    tone: str = NEUTRAL
    """`good`, `bad` or `neutral`."""


def findings(results: Results, comparison: Comparison, found: Computed) -> tuple[AspectFinding, ...]:
    """Return an answer for each aspect, in the order of `ASPECTS`."""
    return tuple(_finding(aspect, results, comparison, found) for aspect in ASPECTS)


def _finding(aspect: str, results: Results, comparison: Comparison, found: Computed) -> AspectFinding:
    gate = comparison.gates[aspect]
    letters = {name: group.letter for group in comparison.groups for name in group.names}
    if gate.state == NO:
        blocked = (*(f"{one.scope} differs in {one.key}." for one in gate.blocking[:_NAMED]), *_more(gate.blocking))
        return AspectFinding(aspect, _QUESTIONS[aspect], gate.state, "Not compared", blocked, BAD)
    if aspect == "quality":
        answer, reasons, tone = _better(results, gate, found, letters)
    elif aspect == "serving":
        answer, reasons, tone = _serves(results, found, letters)
    else:
        key = (TOKENS_PER_S if aspect == "speed" else USD_PER_MILLION_TOKENS).name
        answer, reasons, tone = _least_or_most(key, found, letters)
        reasons += _what_it_takes(results, _won(key, found))
    if aspect == "cost":
        reasons += list(found.break_evens[:_NAMED])
    if gate.confounders and gate.state != NOTHING:
        more = [f"{len(gate.confounders) - _NAMED} more keys"] if len(gate.confounders) > _NAMED else []
        reasons.append(f"May be due to {and_words([*(one.key for one in gate.confounders[:_NAMED]), *more])} as well.")
    return AspectFinding(aspect, _QUESTIONS[aspect], gate.state, answer, tuple(reasons), tone)


def _more(blocking: Sequence[Difference]) -> tuple[str, ...]:
    return (f"{len(blocking) - _NAMED} more differing keys are listed below.",) if len(blocking) > _NAMED else ()


def _won(key: str, found: Computed) -> list[Winner]:
    return [one for one in found.winners if one.quantity.key == key]


def _least_or_most(key: str, found: Computed, letters: Mapping[str, str]) -> tuple[str, list[str], str]:
    """The winner of a quantity, one line a class of comparable variants."""
    quantity = next(one for one in found.quantities if one.key == key)
    ranked = _won(key, found)
    if not ranked:
        return _without_winner(quantity)
    reasons = [_line(one, letters) for one in ranked[:_NAMED]]
    if len(ranked) > _NAMED:
        reasons.append(f"The table of winners has all {len(ranked)} groups.")
    if any(one.verdict == SINGLE for one in ranked):
        reasons.append("Measured once each, so without an interval.")
    reasons += [f"The smallest difference that matters: {size}." for size in dict.fromkeys(one.matters for one in ranked)]
    return _answer(ranked), reasons, NEUTRAL


def _answer(ranked: Sequence[Winner]) -> str:
    first = ranked[0]
    if len(ranked) > 1:
        if all(one.verdict == ONE_RUN for one in ranked):
            return f"Not decided: {first.why}"
        if all(one.verdict == EQUAL for one in ranked):
            return f"Equal within {first.matters} in every group"
        bests = list(dict.fromkeys(one.best for one in ranked if one.verdict in (SHOWN, SINGLE)))
        if not bests:
            return "No difference shown"
        return f"{first.best} in every group" if len(bests) == 1 else f"Best in each of {len(ranked)} groups"
    if first.verdict == EQUAL:
        return f"Equal within {first.matters}"
    if first.verdict == ONE_RUN:
        return f"Not decided: {first.why}"
    if first.verdict == UNDECIDED:
        return "No difference shown"
    margin = first.margin
    if margin.unit:
        return f"{first.best}, by {abs(margin.value):.4f} {margin.unit}"
    size = f"{100 * abs(margin.value):.1f} points" if not margin.relative else f"{100 * abs(margin.value):,.1f}%"
    return f"{first.best}, by {size}"


def _what_it_takes(results: Results, ranked: Sequence[Winner]) -> list[str]:
    """The command that adds the repeats which are missing."""
    ids = {one.name: one.run_id for one in results.variants if one.run_id}
    open_ = [one for one in ranked if one.verdict == ONE_RUN and one.best in ids and one.second in ids]
    return [f"To decide it: {repeat_command(results, ids[one.best], ids[one.second])}" for one in open_[:_NAMED]]


def repeat_command(results: Results, *runs: str) -> str:
    """What adds interleaved repeats of some runs, and compares these; the runs by how their ids begin."""
    begun = ",".join(run if _is_number(run[:_SHORT_ID]) else run[:_SHORT_ID] for run in runs)
    return f"{job_command('compare')} {shlex.join([f'runs=[{begun}]', f'repeat={FEWEST_RUNS}', *results.where])}"


def _is_number(text: str) -> bool:
    """Whether a command line takes it for a number: `12e4`, `1234`."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _line(one: Winner, letters: Mapping[str, str]) -> str:
    best, second = one.quantity.cells[one.best], one.quantity.cells[one.second]
    if len(set(letters.values())) > 1 and one.best in letters:
        if one.verdict == ONE_RUN:
            return f"Group {letters[one.best]}: {one.sentence}."
        return f"Group {letters[one.best]}: {one.best}, {best.text} {one.quantity.unit}, {one.words}."
    said = "once each" if one.verdict == ONE_RUN else one.words
    return f"{one.best} {best.text} against {one.second} {second.text} {one.quantity.unit}: {said}."


def _without_winner(quantity: Quantity) -> tuple[str, list[str], str]:
    known = [name for name in quantity.cells if name in quantity.estimates]
    if len(known) == 1:
        return f"{quantity.cells[known[0]].text} {quantity.unit}", [f"{known[0]} alone: nothing to compare it with."], NEUTRAL
    reasons = dict.fromkeys(cell.text for cell in quantity.cells.values() if cell.value is None)
    return "Not known", [f"{reason[:1].upper()}{reason[1:]}." for reason in list(reasons)[:_NAMED]], NEUTRAL


def _better(results: Results, gate: AspectVerdict, found: Computed, letters: Mapping[str, str]) -> tuple[str, list[str], str]:
    """Which variant solves more of the primary split, and by how much more than the base; without an evaluation, whose loss is lower."""
    key = f"pass_at_1/{results.splits[0]}" if results.splits else ""
    quantity = next((one for one in found.quantities if one.key == key), None)
    if quantity is None or len(quantity.estimates) < 2:
        answer, reasons, tone = _least_or_most(FINAL_LOSS.name, found, letters)
        return answer, [*reasons, "By the training loss: no two of them were evaluated."], tone
    variants = {one.name: one for one in results.variants if one.name in quantity.estimates}
    trained = {name: one for name, one in variants.items() if one.training is not None}
    ranked = _won(key, found)
    answer = _answer(ranked) if ranked else "Not compared"
    rates = and_words([f"{name} {quantity.cells[name].text}%" for name in list(variants)[:_NAMED]])
    reasons = [f"{rates} on {split_name(quantity.split)} problems."]
    reasons += [_paired_line(one) for one in ranked[:_NAMED] if one.best in trained and one.second in trained]
    tone = NEUTRAL
    for base in (one for one in variants.values() if one.training is None):
        gains = {name: margin_of(quantity, one, base) for name, one in trained.items() if _together(gate, name, base.name)}
        reasons += [f"{name} against {base.name}: {gain.words}{_test(gain)}." for name, gain in list(gains.items())[:_NAMED]]
        if gains:
            beaten = all(gain.low is not None and gain.low > 0 for gain in gains.values())
            tone = GOOD if beaten else BAD
            if beaten and answer == "No difference shown":
                answer = f"{answer}; {'both' if len(gains) == 2 else 'all'} beat {base.name}"
    return answer, reasons, tone


def _together(gate: AspectVerdict, *names: str) -> bool:
    return any(set(names) <= set(one) for one in gate.classes)


def _test(gain: Margin) -> str:
    """The test behind a paired margin, with its p-value; nothing where there was none."""
    return "" if gain.p_value is None else f", p = {gain.p_value:.2g} ({gain.method})"


def _paired_line(one: Winner) -> str:
    test = f" ({one.margin.method})" if one.margin.p_value is not None else ""
    return f"{one.best} against {one.second}: {one.words}{test}."


def _serves(results: Results, found: Computed, letters: Mapping[str, str]) -> tuple[str, list[str], str]:
    """Who gives a token for less at each load, or more of them where there is no price."""
    if not any(one.serving for one in results.variants):
        return "Not measured", ["No benchmark of a server with one of these was found."], NEUTRAL
    own = [one for one in found.winners if one.quantity.section == SERVED]
    chosen = [one for one in own if one.quantity.key.startswith(USD_OUTPUT)] or [
        one for one in own if one.quantity.key.startswith(OUTPUT_TOKENS_PER_S.name)
    ]
    if not chosen:
        return "Nothing to compare", ["One server was measured, or no load that two of them had is plausible."], NEUTRAL
    bests = list(dict.fromkeys(one.best for one in chosen if one.verdict in (SHOWN, SINGLE)))
    reasons = [f"{one.quantity.load}: {_line(one, letters)}" for one in chosen[:_NAMED]]
    answer = "No difference shown" if not bests else f"{bests[0]} at every load" if len(bests) == 1 else "It depends on the load"
    return answer, reasons, NEUTRAL


def main_result(results: Results, comparison: Comparison, found: Computed) -> str:
    """Return what a person came for: what the base solves and what the trained models do; without an evaluation, the loss; else nothing.

    Only of what may be compared: `base 0.0% -> tuned 39.6%`.
    """
    key = f"pass_at_1/{results.splits[0]}" if results.splits else ""
    solved = next((one for one in found.quantities if one.key == key), None)
    together = max(comparison.gates["quality"].classes, key=len, default=())
    trained = [one.name for one in results.trained]
    if solved is not None:
        base = next((one.name for one in results.variants if one.training is None and one.name in solved.estimates), None)
        tuned = [name for name in trained if name in solved.estimates and (base is None or {base, name} <= set(together))]
        if tuned:
            values = [solved.cells[name].text for name in tuned]
            said = f"{tuned[0] if len(trained) == 1 else 'tuned'} {_range(values)}%"
            on = f" of {split_name(solved.split)} problems solved"
            return (f"{base} {solved.cells[base].text}% \u2192 {said}" if base else said) + on
    finals = [one.training.final_loss for one in results.trained if one.training and math.isfinite(one.training.final_loss)]
    if not finals or comparison.gates["speed"].state == NO:
        return ""
    starts = [one.training.losses[0][1] for one in results.trained if one.training and one.training.losses]
    every = len(starts) == len(results.trained)
    before = f"{_range([f'{loss:.4f}' for loss in starts])} \u2192 " if starts and every else ""
    return f"loss {before}{_range([f'{loss:.4f}' for loss in finals])} nats/token"


def _range(values: Sequence[str]) -> str:
    """One value where all are the same, else the least and the most."""
    ordered = sorted(set(values), key=float)
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"


def lead(results: Results, comparison: Comparison) -> tuple[str, ...]:
    """What is alike and what is compared, in sentences under the headline."""
    said = []
    trained = results.trained
    if len(comparison.groups) > 1:
        different = f"{len(trained)} trained runs learnt {len(comparison.groups)} different things"
        said.append(f"{different}; runs of one group may be compared with each other.")
    elif len(trained) > 1 and not comparison.of("science"):
        same = " and were examined the same way" if results.splits and not comparison.of("evaluation") else ""
        names = and_words([one.name for one in trained]) if len(trained) <= _NAMED else f"All {len(trained)} trained runs"
        said.append(f"{names} have the same science record{same}.")
    if comparison.subject:
        keys = [_named(one) for one in comparison.subject[: 2 * _NAMED]]
        more = len(comparison.subject) - len(keys)
        said.append(f"Compared: {and_words(keys)}{f' and {more} more' if more > 0 else ''}.")
    if furthest := largest_loss_gap(trained) if len(comparison.groups) == 1 else None:
        apart = f"apart by at most {small(furthest[1])} nats (step {furthest[0]})" if furthest[1] else "equal"
        said.append(f"Step for step their losses are {apart}.")
    return tuple(said)


def headline(comparison: Comparison) -> str:
    """Return the verdict in one sentence."""
    by_state = {state: [one.aspect for one in comparison.gates.values() if one.state == state] for state in (YES, GROUPS, NO)}
    keys = "1 key differs" if len(comparison.blocking) == 1 else f"{len(comparison.blocking)} keys differ"
    if by_state[GROUPS]:
        return f"Comparable in {and_words(by_state[YES] + by_state[GROUPS])}, in groups: {keys} between them."
    if by_state[NO]:
        only = f", only in {and_words(by_state[YES])}" if by_state[YES] else ""
        return f"Not comparable in {and_words(by_state[NO], 'or')}{only}: {keys}."
    if not by_state[YES]:
        return "One run, nothing to compare it with."
    count = len(comparison.confounders)
    extra = f", with {count} {'confounder' if count == 1 else 'confounders'}" if count else ""
    return f"Comparable in {and_words(by_state[YES])}{extra}."


def largest_loss_gap(variants: tuple[Variant, ...]) -> tuple[int, float] | None:
    """Return (step, difference) where the losses of trained variants are furthest apart, or None without common finite steps."""
    gaps = loss_gaps(variants)
    return max(gaps, key=lambda entry: entry[1]) if gaps else None


def loss_gaps(variants: tuple[Variant, ...]) -> tuple[tuple[int, float], ...]:
    """Return (step, largest minus smallest loss) of every step at which all trained variants have a finite loss."""
    curves = [dict(variant.training.losses) for variant in variants if variant.training is not None]
    if len(curves) < 2:
        return ()
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    losses = ((step, [curve[step] for curve in curves]) for step in common)
    return tuple((step, max(values) - min(values)) for step, values in losses if all(math.isfinite(value) for value in values))


def _named(difference: Difference) -> str:
    values = list(difference.by_value)
    shown = " or ".join(values[: 2 * _NAMED]) + (" ..." if len(values) > 2 * _NAMED else "")
    return f"{difference.key} ({shown})"


def and_words(words: Sequence[str], joint: str = "and") -> str:
    """`a, b and c`."""
    return f" {joint} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def small(value: float) -> str:
    """Return a small number without an exponent, two digits of it."""
    if 0 < value < 1e-6:
        return "less than 0.000001"
    decimals = max(2, 1 - math.floor(math.log10(value))) if value else 0
    return f"{value:.{min(decimals, 7)}f}"
