"""Which files of a data set are one split: the rules of the `datasets` library, on names and the card alone. It opens no data files.

In this order: what `configs` in README.md says; `SPLIT-00000-of-00002...` names; folders named after a split; files named after one; and
where nothing names a split, all files are `train` (https://huggingface.co/docs/hub/datasets-file-names-and-splits).
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from os.path import commonprefix
from pathlib import PurePosixPath
from typing import Any

import yaml

from crossmesh.errors import InputError, closest_name

KINDS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SHARDED = re.compile(r"(?P<split>\w+(?:\.\w+)*)-\d{5}-of-(?P<count>\d{5})(?P<rest>.*)\.\w+")
_NO_SPLIT = ("data", "part", "shard", "chunk")
"""Shard names that name no split."""
_SIDE_FILES = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json")
_EDGE = r"[-._ 0-9]"
_FRONT = re.compile(r"---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)


def kind_of(name: str) -> str:
    """Return the kind of a data file by its name, without its compression: `.jsonl` for `rows.jsonl.gz`; empty: it is none."""
    path = PurePosixPath(name)
    suffix = PurePosixPath(path.stem).suffix if path.suffix.lower() in COMPRESSIONS else path.suffix
    return suffix.lower() if suffix.lower() in KINDS else ""


def is_data(name: str) -> bool:
    """Whether a file may hold rows: hidden files, cards and records of other tools do not."""
    parts = PurePosixPath(name).parts
    return bool(kind_of(name)) and parts[-1] not in _SIDE_FILES and not any(part.startswith((".", "__")) for part in parts)


def choose_files(
    source: str, names: Sequence[str], split: str, path: str | None = None, card: str = "", *, together: bool = False
) -> list[str]:
    """Return the data files of `split` among `names` (paths in a data set), in order.

    Args:
        source: Address of the data set, for messages.
        names: All its files.
        split: The split that is wanted.
        path: A file, a folder, a pattern or a subset (`config_name`) of the card; None: the whole data set.
        card: Text of its README.md.
        together: Files of one kind belong together whatever they are called, as in a folder of one's own.

    Raises:
        InputError: the choice spans several subsets or kinds, there is no such split, or shards are missing.
    """
    names = sorted(name for name in names if is_data(name))
    configs = _configs(source, card)
    if path is not None and path not in configs:
        under = [name for name in names if name == path or name.startswith(f"{path.rstrip('/')}/") or fnmatchcase(name, path)]
        if under == [path] or any(character in path for character in "*?["):
            return under
        folder = f"{path.rstrip('/')}/"
        chosen = _by_name([name.removeprefix(folder) for name in under], split)
        return _checked(source, [folder + name for name in chosen], split, names)
    if configs:
        return _configured(source, names, split, configs, path)
    return _checked(source, _by_name(names, split), split, names, together=together)


def splits_of(names: Sequence[str]) -> list[str]:
    """Names of the splits that file names tell of."""
    sharded = {shard["split"] for name in names if (shard := _shard(name))}
    words = {split for split, known in _KEYWORDS.items() if any(_in_file(name, known) or _in_folder(name, known) for name in names)}
    return sorted(sharded or words)


def _configs(source: str, card: str) -> dict[str, Mapping[str, Any]]:
    """Return the subsets that the card names with their files."""
    front = _FRONT.match(card.lstrip("\ufeff"))
    try:
        found = (yaml.safe_load(front[1]) or {}).get("configs") if front else None
        return {str(one.get("config_name", "default")): one for one in found or [] if "data_files" in one or "data_dir" in one}
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"The card of {source} (README.md) has a heading that cannot be read: {reason}. Name a file: {source}/FILE."
        ) from error


def _configured(source: str, names: Sequence[str], split: str, configs: Mapping[str, Mapping[str, Any]], wanted: str | None) -> list[str]:
    """Return the files that the card gives to `split` of one subset."""
    standard = [name for name, one in configs.items() if one.get("default")] or [name for name in configs if name == "default"]
    subset = wanted or (standard or list(configs))[0]
    if wanted is None and not standard and len(configs) > 1:
        offers = " or ".join(f"{source}/{name}" for name in list(configs)[:8])
        raise InputError(f"{source} has {len(configs)} subsets. Name the one meant: data.source={offers}.")
    config = configs[subset]
    folder = str(config.get("data_dir") or "").strip("./")
    prefix = f"{folder}/" if folder else ""
    if "data_files" not in config:
        chosen = _by_name([name.removeprefix(prefix) for name in names if name.startswith(prefix)], split)
        return _checked(source, [prefix + name for name in chosen], split, names)
    files = _patterns(config["data_files"])
    if split not in files:
        raise _no_split(source, split, sorted(files))
    matched: list[str] = []
    for pattern in files[split]:
        found = [name for name in names if _matches(name, prefix + pattern.removeprefix("./"))]
        if not found:
            raise InputError(f"{source}: the card names {pattern!r} for split {split!r}, and there is no such data file.")
        matched += [name for name in found if name not in matched]
    _whole(source, matched)
    return matched


def _patterns(data_files: Any) -> dict[str, list[str]]:
    """Return patterns by split of what `data_files` holds: a pattern, a list, a map, or a list of {split, path}."""
    if isinstance(data_files, Mapping):
        pairs = list(data_files.items())
    elif isinstance(data_files, list) and any(isinstance(one, Mapping) for one in data_files):
        pairs = [(one.get("split", "train"), one.get("path", [])) for one in data_files if isinstance(one, Mapping)]
    else:
        pairs = [("train", data_files)]
    return {str(split): [str(one) for one in (paths if isinstance(paths, list) else [paths])] for split, paths in pairs}


def _matches(name: str, pattern: str) -> bool:
    """Match a path: `*` within one folder, `**` through any number."""
    expression = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    expression = re.sub(r"\\\[(!?)(.*?)\\\]", lambda one: f"[{'^' if one[1] else ''}{one[2].replace(chr(92), '')}]", expression)
    return re.fullmatch(expression, name) is not None


def _shard(name: str) -> re.Match[str] | None:
    found = _SHARDED.fullmatch(PurePosixPath(name).name)
    return found if found and found["split"] not in _NO_SPLIT else None


def _words(split: str) -> tuple[str, ...]:
    return next((words for words in _KEYWORDS.values() if split in words), (split,))


def _in_part(part: str, words: Sequence[str]) -> bool:
    return any(re.search(rf"(?:^|{_EDGE}){re.escape(word)}(?:{_EDGE}|$)", part) for word in words)


def _in_folder(name: str, words: Sequence[str]) -> bool:
    return any(_in_part(part, words) for part in PurePosixPath(name).parts[:-1])


def _in_file(name: str, words: Sequence[str]) -> bool:
    return _in_part(PurePosixPath(name).name, words)


def _by_name(names: Sequence[str], split: str) -> list[str]:
    """Return the files whose names say that they are of `split`."""
    shards = {name: shard["split"] for name in names if (shard := _shard(name))}
    if shards:
        exact = [name for name, found in shards.items() if found == split]
        return exact or [name for name, found in shards.items() if found in _words(split)]
    for inside in (_in_folder, _in_file):
        chosen = [name for name in names if inside(name, (split,))] or [name for name in names if inside(name, _words(split))]
        if chosen:
            return chosen
        if any(inside(name, words) for name in names for words in _KEYWORDS.values()) and inside is _in_file:
            return []
    return list(names) if split == "train" else []


def _checked(source: str, chosen: list[str], split: str, names: Sequence[str], *, together: bool = False) -> list[str]:
    """Refuse files that are several subsets, or of which some are missing."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name in chosen:
        groups.setdefault(("", kind_of(name), "") if together else _group(name, split), []).append(name)
    if len(groups) > 1:
        offers = " or ".join(f"{source}/{_offer(group, names)}" for group in list(groups.values())[:4])
        raise InputError(f"{source} has {len(groups)} subsets of split {split!r}. Name the one meant: data.source={offers}.")
    if not chosen and (known := splits_of(names)):
        raise _no_split(source, split, known)
    _whole(source, chosen)
    return chosen


def _group(name: str, split: str) -> tuple[str, str, str]:
    """What two files share that are shards of one table: their folder, kind and name without numbers and digests.

    All files of one kind in a folder that is named after the split are one table.
    """
    path = PurePosixPath(name)
    words = _words(split)
    if _in_folder(name, words):
        at = max(index for index, part in enumerate(path.parts[:-1]) if _in_part(part, words))
        return "/".join(path.parts[: at + 1]), kind_of(name), ""
    stem = path.name.split(".")[0]
    if shard := _shard(name):
        stem = shard["split"]
    else:
        stem = re.sub(r"[-_.]?(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*\d)[0-9a-f]{8,})(?:-c\d+)?$", "", stem)
        stem = re.sub(r"(?:[-_.]?(?:\d+(?:-of-\d+)?))+$", "", stem)
    return str(path.parent), kind_of(name), stem


def _offer(group: Sequence[str], names: Sequence[str]) -> str:
    """A path that names these files and no others: the file, its folder or a pattern."""
    if len(group) == 1:
        return group[0]
    folder = str(PurePosixPath(group[0]).parent)
    if folder != "." and [name for name in names if name.startswith(f"{folder}/")] == list(group):
        return folder
    return f"{commonprefix(list(group))}*"  # noqa: RUF071  # Of characters is what is meant.


def _no_split(source: str, split: str, known: Sequence[str]) -> InputError:
    guess = closest_name(split, known) or (known[0] if len(known) == 1 else "")
    advice = f"Set data.split={guess}." if guess else "Set data.split to one of them."
    return InputError(f"{source} has no split {split!r}. It has: {', '.join(known) or 'none'}. {advice}")


def _whole(source: str, chosen: Sequence[str]) -> None:
    """Refuse `x-00000-of-00003` without its fellows, which a download that stopped leaves."""
    counts: dict[tuple[str, str, int], int] = {}
    for name in chosen:
        if shard := _SHARDED.fullmatch(PurePosixPath(name).name):
            key = (str(PurePosixPath(name).parent), shard["split"], int(shard["count"]))
            counts[key] = counts.get(key, 0) + 1
    for (_, split, count), found in counts.items():
        if found < count:
            raise InputError(
                f"{source} has {found} of the {count} files of {split!r} here. Go online once (unset HF_HUB_OFFLINE) to fetch the rest."
            )
