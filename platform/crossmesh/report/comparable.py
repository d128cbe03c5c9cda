"""The comparability gate: may these results be set side by side, and if not, which keys differ.

Pure: values in, verdict out. It judges no number; what the numbers say is `findings`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crossmesh.files import canonical_json
from crossmesh.report.variants import RunRecord

EFFECTS = {
    "science": "not the same training: rules out quality and speed",
    "evaluation": "not examined the same way: rules out quality",
    "system": "what is being compared",
    "provenance": "confounder: may explain a difference in speed",
}
"""What a difference in a scope means."""
_ABSENT = "absent"
_LONGEST_TEXT = 120
_NAMED_MEMBERS = 3
_DIGEST_LENGTH = 64
_MISSING = object()


@dataclass(frozen=True)
class Difference:
    """One key that is not the same in all records that have its scope."""

    scope: str
    key: str
    """Dotted key inside the record."""
    values: Mapping[str, str]
    """By record name, in plain words."""

    @property
    def effect(self) -> str:
        """What the difference means for the comparison."""
        return EFFECTS[self.scope]


@dataclass(frozen=True)
class Comparison:
    """The verdict on a set of records."""

    quality: bool
    """Losses and pass@k may be compared."""
    speed: bool
    """Times, rates and costs may be compared, apart from the confounders."""
    differences: tuple[Difference, ...]
    """By scope in the order of `EFFECTS`, then by key."""

    @property
    def comparable(self) -> bool:
        """Whether quality and speed may both be compared."""
        return self.quality and self.speed

    @property
    def blocking(self) -> tuple[Difference, ...]:
        """Differences that forbid a comparison."""
        return self.of("science", "evaluation")

    @property
    def confounders(self) -> tuple[Difference, ...]:
        """Differences that may explain a difference in speed."""
        return self.of("provenance")

    @property
    def subject(self) -> tuple[Difference, ...]:
        """Differences that are what the comparison is about."""
        return self.of("system")

    def of(self, *scopes: str) -> tuple[Difference, ...]:
        """Return the differences of some scopes."""
        return tuple(difference for difference in self.differences if difference.scope in scopes)


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Compare records: training records among those that were trained, the evaluation record among all.

    A base model has no science and is a reference for quality only, so its evaluation must match and nothing else. A record without
    an evaluation beside records with one differs from them; when none has one, quality is the training loss and rests on science.
    """
    trained = [record for record in records if record.science is not None]
    science = _differences("science", {record.name: record.science for record in trained})
    evaluation = _differences("evaluation", {record.name: record.evaluation for record in records})
    system = _differences("system", {record.name: record.system for record in trained})
    provenance = _differences("provenance", {record.name: record.provenance for record in trained})
    return Comparison(
        quality=not science and not evaluation,
        speed=not science,
        differences=(*science, *evaluation, *system, *provenance),
    )


def _differences(scope: str, values: Mapping[str, Any]) -> tuple[Difference, ...]:
    plain = {name: json.loads(canonical_json(value)) for name, value in values.items()}
    return tuple(Difference(scope, key or scope, words) for key, words in _walk("", plain))


def _walk(key: str, values: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return (dotted key, plain words by name) of every place where `values` are not all the same."""
    if len({_exact(value) for value in values.values()}) <= 1:
        return []
    if all(isinstance(value, dict) for value in values.values()):
        keys = sorted({inner for value in values.values() for inner in value})
        found = []
        for inner in keys:
            inside = {name: value.get(inner, _MISSING) for name, value in values.items()}
            found += _walk(f"{key}.{inner}" if key else inner, inside)
        return found
    if all(isinstance(value, list) for value in values.values()):
        return [(key, _list_words(values))]
    return [(key, {name: plain_words(value) for name, value in values.items()})]


def _exact(value: Any) -> str:
    """Return text that is equal exactly when fingerprints would be: 1, 1.0 and true are three values."""
    return _ABSENT if value is _MISSING else f"={canonical_json(value)}"


def _list_words(values: Mapping[str, list[Any]]) -> dict[str, str]:
    """Say how lists differ: by members when they are sets of names, otherwise by the first place that differs."""
    members = {name: {_exact(item) for item in value} for name, value in values.items()}
    names_only = all(isinstance(item, str) for value in values.values() for item in value)
    distinct = all(len(members[name]) == len(value) for name, value in values.items())
    if names_only and distinct and len({frozenset(member) for member in members.values()}) > 1:
        common = set.intersection(*members.values())
        return {name: _member_words([item for item in value if _exact(item) not in common], len(value)) for name, value in values.items()}
    longest = max(len(value) for value in values.values())
    first = next(i for i in range(longest) if len({_exact(v[i]) if i < len(v) else _ABSENT for v in values.values()}) > 1)
    return {
        name: f"{_count(len(value))}, number {first + 1} is {plain_words(value[first]) if first < len(value) else _ABSENT}"
        for name, value in values.items()
    }


def _member_words(alone: list[str], count: int) -> str:
    if not alone:
        return f"{_count(count)}, none of its own"
    named = ", ".join(alone[:_NAMED_MEMBERS])
    more = f" and {len(alone) - _NAMED_MEMBERS} more" if len(alone) > _NAMED_MEMBERS else ""
    return f"{_count(count)}, of its own {named}{more}"


def _count(number: int) -> str:
    return f"{number} {'entry' if number == 1 else 'entries'}"


def plain_words(value: Any) -> str:
    """Return a JSON value as a person would write it; digests are shortened, long text is cut with its length named."""
    if value is _MISSING:
        return _ABSENT
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        if len(value) == _DIGEST_LENGTH and all(letter in "0123456789abcdef" for letter in value):
            return f"{value[:12]}…"
        text = value or "empty"
    elif isinstance(value, list) and all(isinstance(item, str | int | float) for item in value):
        text = ", ".join(plain_words(item) for item in value) or "empty"
    else:
        text = canonical_json(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 20]}… ({len(text)} characters)"
