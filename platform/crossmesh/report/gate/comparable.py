"""The comparability gate: which results may be set side by side in what, and if not, which keys differ.

Pure: values in, verdict out. It judges no number; what the numbers say is `findings`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from crossmesh.config.fingerprint import SCIENCE_FORM, WITHOUT_RECORD, form_of
from crossmesh.files import canonical_json
from crossmesh.report.variants import Variant

ASPECTS = ("quality", "speed", "cost", "serving")
YES, GROUPS, NO, NOTHING = "comparable", "comparable in groups", "not comparable", "nothing to compare"
EFFECTS = {
    "science": "not the same training: rules out quality, speed and cost",
    "evaluation": "not examined the same way: rules out quality",
    "workload": "not the same load: rules out serving",
    "system": "what is being compared",
    "server": "what is being compared",
    "provenance": "confounder: may explain a difference in speed",
    "surroundings": "confounder: decides no answer by itself, may explain a difference in quality",
}
"""What a difference in a scope means."""
EMULATED = "emulated"
"""Key of the system record and of a server's: CPU devices under the name of other hardware. No choice that is compared."""
_EMULATION = "emulated beside real hardware: rules out speed, cost and serving"
_CONFOUNDER_OF_SERVING = "confounder: may explain a difference in serving"
_OTHER_FORM = "recorded by different versions of crossmesh: cannot be held against each other; rules out quality, speed and cost"
_SAID_BY_SCIENCE = "confounder: science has the rows and steps that came of it"
_TRAINING = ("files.", "settings.")
"""Parts of the provenance of a training that tell how the rows of its steps came about (`track/provenance.py`)."""
_FORM = "form"
_UNPROVEN = "no record beside the weights proves what was learnt: rules out quality, speed and cost"
_CONFOUNDING = ("dtype", "version", "digest", "weights", "libraries", "template")
"""A key of a server's record with one of these in its last part is not a choice that was compared, but something else that differs."""
_NAMED_KEYS = 3
ABSENT = "absent"
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
    def confounds(self) -> bool:
        """Whether it may explain a difference without being what is compared."""
        return self.scope in ("provenance", "surroundings") or (
            self.scope == "server" and any(word in self.key.lower() for word in _CONFOUNDING)
        )

    @property
    def emulation(self) -> bool:
        """Whether it tells emulated hardware from real."""
        return self.scope in ("system", "server") and self.key.rpartition(".")[2] == EMULATED

    @property
    def effect(self) -> str:
        """What the difference means for the comparison."""
        if self.emulation:
            return _EMULATION
        if self.scope == "science" and self.key == _FORM:
            return _OTHER_FORM
        if self.scope == "science" and self.key == WITHOUT_RECORD:
            return _UNPROVEN
        if self.scope == "provenance" and self.key.startswith(_TRAINING):
            return _SAID_BY_SCIENCE
        return _CONFOUNDER_OF_SERVING if self.scope == "server" and self.confounds else EFFECTS[self.scope]

    @property
    def by_value(self) -> dict[str, list[str]]:
        """The names of the records by the value that they have; numbers in their order."""
        found: dict[str, list[str]] = {}
        for name, value in self.values.items():
            found.setdefault(value, []).append(name)
        try:
            return dict(sorted(found.items(), key=lambda item: float(item[0])))
        except ValueError:  # No numbers: in the order of the records.
            return found


@dataclass(frozen=True)
class ScienceGroup:
    """Runs that learnt the same."""

    letter: str
    names: tuple[str, ...]
    words: str
    """What sets it apart from the other groups; empty where it is the only one."""


@dataclass(frozen=True)
class AspectVerdict:
    """The verdict in one aspect."""

    aspect: str
    state: str
    """`YES`, `GROUPS`, `NO` or `NOTHING`."""
    classes: tuple[tuple[str, ...], ...]
    """Names that may be compared with each other; only classes of two and more."""
    blocking: tuple[Difference, ...] = ()
    confounders: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The verdict on a set of records."""

    gates: Mapping[str, AspectVerdict]
    """By aspect, in the order of `ASPECTS`."""
    groups: tuple[ScienceGroup, ...]
    """Trained runs by what they learnt, the largest first."""
    differences: tuple[Difference, ...]
    """By scope in the order of `EFFECTS`, then by key."""

    @property
    def quality(self) -> bool:
        """Whether nothing forbids to compare losses and pass@k."""
        return not self.of("science", "evaluation")

    @property
    def speed(self) -> bool:
        """Whether nothing forbids to compare times, rates and costs, apart from the confounders."""
        return not self.of("science") and not any(one.emulation for one in self.of("system"))

    @property
    def comparable(self) -> bool:
        """Whether quality and speed may both be compared."""
        return self.quality and self.speed

    @property
    def blocking(self) -> tuple[Difference, ...]:
        """Differences that forbid a comparison."""
        return (*self.of("science", "evaluation", "workload"), *(one for one in self.of("system", "server") if one.emulation))

    @property
    def confounders(self) -> tuple[Difference, ...]:
        """Differences that may explain a difference without being what is compared."""
        return tuple(difference for difference in self.differences if difference.confounds)

    @property
    def subject(self) -> tuple[Difference, ...]:
        """Differences of training runs that are what the comparison is about."""
        return tuple(one for one in self.of("system") if not one.emulation)

    def of(self, *scopes: str) -> tuple[Difference, ...]:
        """Return the differences of some scopes."""
        return tuple(difference for difference in self.differences if difference.scope in scopes)


def compare_variants(variants: Sequence[Variant]) -> Comparison:
    """Compare variants: training records among those that were trained, evaluation and serving records among those that have them.

    A base model has no science and is a reference for quality only. What was not evaluated or benchmarked is a missing cell, not a
    difference.
    """
    found = {scope: differences_in(scope, variants) for scope in EFFECTS}
    found["system"] = _with_emulation("system", found["system"], {one.name: one.emulated for one in variants if one.training})
    found["server"] = _with_emulation("server", found["server"], {one.name: one.serving_emulated for one in variants if one.serving})
    differences = tuple(one for several in found.values() for one in several)
    by_science = _classes(variants, "science")
    return Comparison(
        gates={aspect: _gate(aspect, variants, found) for aspect in ASPECTS},
        groups=tuple(
            ScienceGroup(_letter(number), names, _group_words(names, found["science"]) if len(by_science) > 1 else "")
            for number, names in enumerate(by_science)
        ),
        differences=differences,
    )


def _gate(aspect: str, variants: Sequence[Variant], found: Mapping[str, tuple[Difference, ...]]) -> AspectVerdict:
    if aspect == "serving":
        members = [one for one in variants if one.serving]
        classes = _real_apart(_classes(members, "workload"), {one.name for one in members if one.serving_emulated})
        blocking = (*found["workload"], *(one for one in found["server"] if one.emulation))
        confounders = tuple(one for one in found["server"] if one.confounds)
    elif aspect == "quality":
        members = [one for one in variants if one.training or one.scores]
        classes, blocking, confounders = quality_classes(variants), (*found["science"], *found["evaluation"]), found["surroundings"]
    else:
        members = [one for one in variants if one.training and (aspect == "speed" or one.usd is not None)]
        classes = _real_apart(_classes(members, "science"), {one.name for one in members if one.emulated})
        blocking = (*found["science"], *(one for one in found["system"] if one.emulation))
        confounders = found["provenance"]
        if aspect == "cost":
            confounders = (*confounders, *_prices(members))
    together = tuple(names for names in classes if len(names) > 1)
    trained = {one.name for one in members if one.record.science is not None} or {one.name for one in members}
    if len(members) < 2:
        state = NOTHING
    elif not blocking:
        state = YES
    else:  # A base model beside each of two trainings does not make these comparable with each other.
        state = GROUPS if any(len(trained & set(names)) > 1 for names in together) else NO
    return AspectVerdict(aspect, state, together, blocking, confounders)


def quality_classes(variants: Sequence[Variant]) -> tuple[tuple[str, ...], ...]:
    """Names whose pass@k may be compared: the same science, examined the same way; a base model goes with all who were so examined."""
    found: dict[tuple[str | None, str | None], list[str]] = {}
    for one in variants:
        if one.record.science is not None:
            found.setdefault((one.record.fingerprint("science"), one.record.fingerprint("evaluation")), []).append(one.name)
    bases = [one for one in variants if one.record.science is None and one.scores]
    for base in bases:
        examined = base.record.fingerprint("evaluation")
        joined = [names for (_, own), names in found.items() if own == examined]
        for names in joined:
            names.insert(0, base.name)
        if not joined:
            found[None, examined] = [base.name]
    return tuple(tuple(names) for names in found.values())


def _classes(variants: Sequence[Variant], scope: str) -> tuple[tuple[str, ...], ...]:
    """Names by equal record of a scope, the largest class first; those without the record are left out."""
    found: dict[str, list[str]] = {}
    for one in variants:
        if fingerprint := one.record.fingerprint(scope):
            found.setdefault(fingerprint, []).append(one.name)
    return tuple(sorted((tuple(names) for names in found.values()), key=lambda names: -len(names)))


def _with_emulation(scope: str, found: tuple[Difference, ...], emulated: Mapping[str, bool]) -> tuple[Difference, ...]:
    """The differences of a scope, with one that says who is emulated where not all are: by any of their records, not by this one alone."""
    rest = tuple(one for one in found if not one.emulation)
    if len(set(emulated.values())) < 2:
        return rest
    return (Difference(scope, EMULATED, {name: plain_words(value) for name, value in emulated.items()}), *rest)


def _real_apart(classes: tuple[tuple[str, ...], ...], emulated: set[str]) -> tuple[tuple[str, ...], ...]:
    """The same classes with emulated members in classes of their own."""
    parts = [tuple(name for name in names if (name in emulated) == apart) for names in classes for apart in (False, True)]
    return tuple(sorted((part for part in parts if part), key=lambda names: -len(names)))


def _prices(variants: Sequence[Variant]) -> tuple[Difference, ...]:
    """Whether prices are of different kinds, regions or dates."""
    basis = {one.name: one.rent.basis for one in variants}
    return (Difference("provenance", "price", basis),) if len(set(basis.values())) > 1 else ()


def _letter(number: int) -> str:
    """A, B, ... Z, A2, B2, ..."""
    again, place = divmod(number, len(ascii_uppercase))
    return f"{ascii_uppercase[place]}{again + 1 if again else ''}"


def _group_words(names: tuple[str, ...], differences: tuple[Difference, ...]) -> str:
    said = [f"{one.key} {one.values[names[0]]}" for one in differences if names[0] in one.values]
    more = f" and {len(said) - _NAMED_KEYS} more" if len(said) > _NAMED_KEYS else ""
    return "; ".join(said[:_NAMED_KEYS]) + more


def differences_in(scope: str, variants: Sequence[Variant]) -> tuple[Difference, ...]:
    """Return what differs in one scope. One record of each fingerprint is walked: of two hundred runs most share theirs."""
    trained = scope in ("system", "provenance")
    owners: dict[str, list[str]] = {}
    contents: dict[str, Any] = {}
    for one in variants:
        fingerprint = one.record.fingerprint(scope)
        if fingerprint is None or (trained and one.record.science is None):
            continue
        owners.setdefault(fingerprint, []).append(one.name)
        contents.setdefault(fingerprint, getattr(one.record, scope))
    known: dict[int, Any] = {}
    plain = {fingerprint: _plain(value, known) for fingerprint, value in contents.items()}
    order = [one.name for one in variants]
    found = []
    forms = {fingerprint: form_of(value) for fingerprint, value in plain.items()} if scope == "science" else {}
    if len(set(forms.values())) > 1:  # Their keys do not mean the same.
        walked = [(_FORM, {fingerprint: _form_words(form) for fingerprint, form in forms.items()})]
    else:
        walked = _inside("", plain) if len(plain) > 1 else []  # Their fingerprints differ.
    for key, words in walked:
        by_name = {name: value for fingerprint, value in words.items() for name in owners[fingerprint]}
        found.append(Difference(scope, key or scope, {name: by_name[name] for name in order if name in by_name}))
    return tuple(found)


def _form_words(form: int) -> str:
    if form == SCIENCE_FORM:
        return str(form)
    return f"{form}, recorded by {'an older' if form < SCIENCE_FORM else 'a newer'} version of crossmesh"


def form_notes(variants: Sequence[Variant]) -> tuple[str, ...]:
    """What a reader must know of trainings whose science record is of another form than this version's."""
    found: dict[int, list[str]] = {}
    for one in variants:
        if one.record.science is not None and (form := form_of(one.record.science)) != SCIENCE_FORM:
            found.setdefault(form, []).append(one.name)
    return tuple(
        f"{_some(names)}: science record of form {_form_words(form)}, and comparable with runs of that form alone. Train again to "
        "compare with new runs."
        for form, names in sorted(found.items())
    )


def unproven_notes(variants: Sequence[Variant]) -> tuple[str, ...]:
    """What a reader must know of trainings whose science nothing proves."""
    found = [one.name for one in variants if WITHOUT_RECORD in (one.record.science or {})]
    if not found:
        return ()
    return (
        f"{_some(found)}: without a record beside the weights, so nothing proves what was learnt, and it is compared with no other run. "
        "Train again to compare.",
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_KEYS} more" if len(names) > _NAMED_KEYS else ""
    return ", ".join(names[:_NAMED_KEYS]) + more


def _plain(record: Mapping[str, Any], known: dict[int, Any]) -> dict[str, Any]:
    """A record as JSON has it; a part that records share, in `known` by its id, stays one object."""
    for part in record.values():
        if id(part) not in known:
            known[id(part)] = json.loads(canonical_json(part))
    return {key: known[id(part)] for key, part in record.items()}


def _walk(key: str, values: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return (dotted key, plain words by name) of every place where `values` are not all the same."""
    first = next(iter(values.values()), None)
    if all(value is first for value in values.values()) or len({_exact(value) for value in values.values()}) <= 1:
        return []
    if all(isinstance(value, dict) for value in values.values()):
        return _inside(key, values)
    if all(isinstance(value, list) for value in values.values()):
        return [(key, _list_words(values))]
    return [(key, {name: plain_words(value) for name, value in values.items()})]


def _inside(key: str, values: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """The same of mappings: what differs by their keys."""
    found = []
    for inner in sorted({inner for value in values.values() for inner in value}):
        found += _walk(f"{key}.{inner}" if key else inner, {name: value.get(inner, _MISSING) for name, value in values.items()})
    return found


def _exact(value: Any) -> str:
    """Return text that is equal exactly when fingerprints would be: 1, 1.0 and true are three values."""
    return ABSENT if value is _MISSING else f"={canonical_json(value)}"


def _list_words(values: Mapping[str, list[Any]]) -> dict[str, str]:
    """Say how lists differ: by members when they are sets of names, otherwise by the first place that differs."""
    members = {name: {_exact(item) for item in value} for name, value in values.items()}
    names_only = all(isinstance(item, str) for value in values.values() for item in value)
    distinct = all(len(members[name]) == len(value) for name, value in values.items())
    if names_only and distinct and len({frozenset(member) for member in members.values()}) > 1:
        common = set.intersection(*members.values())
        return {name: _member_words([item for item in value if _exact(item) not in common], len(value)) for name, value in values.items()}
    longest = max(len(value) for value in values.values())
    first = next(i for i in range(longest) if len({_exact(v[i]) if i < len(v) else ABSENT for v in values.values()}) > 1)
    return {
        name: f"{_count(len(value))}, number {first + 1} is {plain_words(value[first]) if first < len(value) else ABSENT}"
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
        return ABSENT
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
