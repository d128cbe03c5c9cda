"""Answers to look at, and how a model did on each kind of problem. Pure but for `read_said`, which reads one file of verdicts.

Which answers are shown is a rule and no choice: of the first answers to the problems of the primary split, the first two that
passed and the first two that failed, in the order of a digest of their names, so that no kind of problem comes first.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from crossmesh.evaluate.passk import estimate
from crossmesh.files import digest_text
from crossmesh.metrics import MEASURED
from crossmesh.report.tables.cells import Column, Table, TableCell, missing
from crossmesh.report.variants import PRIMARY_SPLIT, Results, Said, Score, Variant, split_name

MOST_VARIANTS = 4
"""More models than these have no answers on the page, and their files are not read."""
_EACH = 2
_MOST_BYTES = 16 << 20
_LONGEST_ANSWER = 800
_LONGEST_DETAIL = 200
_NAME = re.compile(r"(.+)-[0-9a-f]{12}")
"""How the task `rtl` names a problem: its kind and a digest."""


@dataclass(frozen=True)
class Example:
    """One answer of a model that was trained, and the base's to the same problem."""

    variant: str
    problem: str
    said: Said
    base: Said | None


def read_said(file: Path) -> dict[str, Said]:
    """Return the first answer to each problem from the first 16 MiB of a `judged.jsonl`; a line of another form is passed over."""
    found: dict[str, Said] = {}
    read = 0
    with file.open("rb") as lines:
        for line in lines:
            read += len(line)
            if read > _MOST_BYTES:
                break
            one = _said(line)
            if one is not None and one[0] not in found:
                found[one[0]] = one[1]
    return found


def _said(line: bytes) -> tuple[str, Said] | None:
    try:
        values: Any = json.loads(line)
        if values["index"] != 0:
            return None
        told = values["detail"] or values["error"]
        reason = f"{values['reason']}: {told}" if told else values["reason"]
        return str(values["problem"]), Said(
            printable(values["text"], _LONGEST_ANSWER), bool(values["passed"]), printable(reason, _LONGEST_DETAIL)
        )
    except (ValueError, KeyError, TypeError):
        return None


def printable(text: str, longest: int) -> str:
    """Return `text` without what steers a screen or turns its direction, shortened to `longest` characters and the number left out."""
    plain = "".join(one if one in "\n\t" or unicodedata.category(one) not in ("Cc", "Cf", "Cs") else "\ufffd" for one in text[:longest])
    left = len(text) - longest
    return f"{plain} [... {left:,} more characters]" if left > 0 else plain


def examples(results: Results) -> tuple[Example, ...]:
    """Return, for each trained model, two answers that passed and two that failed, fewer where there are not so many."""
    if len(results.variants) > MOST_VARIANTS:
        return ()
    base = next((one for one in results.variants if one.backend is None and one.said), None)
    found: list[Example] = []
    for variant in results.variants:
        if variant is base:
            continue
        split = next((one for one in results.splits if one in variant.answers), PRIMARY_SPLIT)
        asked = variant.answers.get(split, {})
        own = sorted((one for one in variant.said.items() if one[0] in asked), key=lambda one: digest_text(one[0]))
        for passed in (True, False):
            chosen = islice(((problem, said) for problem, said in own if said.passed is passed), _EACH)
            found += [Example(variant.name, problem, said, _of_base(base, variant, problem)) for problem, said in chosen]
    return tuple(found)


def _of_base(base: Variant | None, variant: Variant, problem: str) -> Said | None:
    """What the base said, where it was asked the same."""
    same = base is not None and base.record.fingerprint("evaluation") == variant.record.fingerprint("evaluation")
    return base.said.get(problem) if base is not None and same else None


def by_kind(results: Results) -> Table | None:
    """Return pass@1 by kind of problem with its interval; None where problems have no kind: pass@1 by split stands with the evaluation."""
    if len(results.variants) > MOST_VARIANTS:
        return None
    scores = {one.name: _kinds(one) for one in results.variants}
    kinds = sorted({kind for own in scores.values() for kind in own}, key=lambda one: (one[0] != PRIMARY_SPLIT, one))
    if not any(kind for _, kind in kinds):
        return None
    rows = []
    for split, kind in kinds:
        asked = [own[(split, kind)].problems for own in scores.values() if (split, kind) in own]
        prefix = f"{split_name(split)}, " if kind else ""
        label = TableCell(kind or split_name(split), f"{prefix}{max(asked)} problems")
        rows.append((label, *(_share(own.get((split, kind))) for own in scores.values())))
    columns = (Column("Kind of problem"), *(Column(one.name, number=True) for one in results.variants))
    level = next(one.level for own in scores.values() for one in own.values())
    caption = f"pass@1 with its {level:.0%} interval. Few problems of a kind: the intervals are wide, and no winner is named."
    return Table("kinds", "By kind of problem", caption, columns, tuple(rows), sortable=False)


def _kinds(variant: Variant) -> dict[tuple[str, str], Score]:
    """pass@1 by (split, kind); kind is empty where problems are not named by one."""
    grouped: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for split, counts in variant.answers.items():
        for problem, count in counts.items():
            grouped.setdefault((split, _kind(variant.record.evaluation, problem)), []).append(count)
    found = {}
    for (split, kind), pairs in grouped.items():
        one = estimate(pairs, 1, 0)
        found[split, kind] = Score(split, 1, one.value, one.low, one.high, one.level, one.method, len(pairs))
    return found


def _kind(evaluation: Mapping[str, Any] | None, problem: str) -> str:
    matched = _NAME.fullmatch(problem) if (evaluation or {}).get("task") == "rtl" else None
    return matched[1] if matched else ""


def _share(score: Score | None) -> TableCell:
    if score is None:
        return missing("not evaluated")
    return TableCell(f"{score.value:.1%}", f"{score.low:.1%} to {score.high:.1%}", MEASURED, score.value)
