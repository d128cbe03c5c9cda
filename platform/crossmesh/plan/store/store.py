"""Keeps what compilers and traces answered, so that no question is asked twice: in a folder, with the package, and at a URL.

An answer is found by its question. One that was made by other library versions or other sources of the step is *stale*: it is still
given, with the reason. What questions and answers mean is known to those who ask (`plan/compilers/`). Imports no framework:
versions are read from the installed packages' metadata.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from crossmesh.environments import compiler_folder, environment, package_root
from crossmesh.errors import InputError, require_choice
from crossmesh.files import canonical_json, digest_text, write_json

KINDS = ("tpu", "gpu")
"""`tpu`: compiled ahead of time; `gpu`: traced."""
_SOURCES = {
    "tpu": ("models/**/*.py", "objectives/**/*.py", "train/**/backend.py", "train/**/*_jax.py", "train/**/jax_*.py"),
    "gpu": (
        "models/**/*.py",
        "objectives/**/*.py",
        "train/**/backend.py",
        "train/**/*_torch.py",
        "train/**/torch_*.py",
        "plan/compilers/trace_gpu*.py",
        "plan/compilers/allocations.py",
    ),
}
"""Files of the package that decide what the step of a kind is."""
_OTHER_BACKEND = {"tpu": "_torch.py", "gpu": "_jax.py"}
_PACKAGES = {
    "tpu": ("jax", "jaxlib", "libtpu", "flax", "google-tunix", "qwix", "optax"),
    "gpu": ("torch", "transformers", "peft"),
}
"""Distributions that decide it as well."""
WORKERS = {"tpu": "plan/aot-tpu", "gpu": "plan/trace-gpu"}
"""Environment that makes such answers."""


@dataclass(frozen=True)
class Question:
    """What is asked of a compiler or a trace."""

    kind: str
    """One of `KINDS`."""
    fields: Mapping[str, Any]
    """Plain JSON: everything of a plan that the step depends on, and nothing else."""

    def __post_init__(self) -> None:
        """Check the kind."""
        require_choice("kind", self.kind, KINDS)

    @cached_property
    def digest(self) -> str:
        """Of the question alone."""
        return digest_text(canonical_json([self.kind, self.fields]))


@dataclass(frozen=True)
class Maker:
    """What an answer depends on beside its question."""

    sources: str
    """Digest of the package's files that make the step."""
    versions: Mapping[str, str]
    """Of the libraries that were there; one that is not known here counts as equal."""

    @property
    def digest(self) -> str:
        """Of all of it."""
        return digest_text(canonical_json([self.sources, self.versions]))

    def named(self, library: str) -> str:
        """A library with its version, for a person."""
        return f"{library} {self.versions.get(library, 'of unknown version')}"

    def differences(self, other: "Maker") -> tuple[str, ...]:
        """What `other` has otherwise, for a person."""
        differing = ["the package's sources of the step"] if self.sources != other.sources else []
        both = self.versions.keys() & other.versions.keys()
        differing += [f"{name} {other.versions[name]}" for name in sorted(both) if self.versions[name] != other.versions[name]]
        return tuple(differing)


@dataclass(frozen=True)
class StoredAnswer:
    """A kept answer."""

    value: Mapping[str, Any]
    """As the worker gave it; plain JSON."""
    seconds: float
    """How long it took to make."""
    maker: Maker
    stale: tuple[str, ...] = ()
    """What it was made with that is different now; empty when it is current."""


def stale_warning(reasons: tuple[str, ...]) -> tuple[str, ...]:
    """What a plan says of answers that are stale for these `reasons`; nothing where there are none."""
    return (f"The figures compiled or traced are stale, made with another: {', '.join(reasons)}.",) if reasons else ()


def maker(kind: str) -> Maker:
    """What an answer of `kind` made now, by this package and the libraries found here, depends on."""
    # Of an environment that is not the driver's own nothing is known here.
    apart = environment(WORKERS[kind]).python is not None
    return Maker(_sources(kind), {} if apart else versions(kind, str(compiler_folder())))


def key(question: Question, made_by: Maker) -> str:
    """Name of an answer: digests of its question and of what made it."""
    return f"{question.digest[:32]}-{made_by.digest[:16]}"


@lru_cache(maxsize=8)
def versions(kind: str, folder: str = "") -> Mapping[str, str]:
    """Versions of the libraries that decide a step of `kind`, as installed here or in `folder`; absent ones are left out."""
    installed = {}
    for name in _PACKAGES[kind]:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
        if folder and name not in installed:
            installed.update((name, one.version) for one in metadata.distributions(name=name, path=[folder]))
    return installed


@lru_cache(maxsize=8)
def _sources(kind: str) -> str:
    root, digest = package_root() / "crossmesh", hashlib.sha256()
    for path in sorted({path for pattern in _SOURCES[kind] for path in root.glob(pattern)}):
        if not path.name.endswith(_OTHER_BACKEND[kind]):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


class AnswerStore:
    """Answers in `folder`, those shipped with the package, and those at `url`, an fsspec folder that teams share (empty: none)."""

    def __init__(self, folder: Path, url: str = "", shipped: Path | None = None, now: Callable[[str], Maker] = maker) -> None:
        """Open; nothing is read yet. `shipped` and `now` are given by tests."""
        self._folder, self._url, self._now = folder, url.rstrip("/"), now
        self._shipped = shipped or Path(str(resources.files("crossmesh.plan.store").joinpath("answers")))
        self.notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where answers are kept."""
        return self._folder

    def find(self, question: Question) -> StoredAnswer | None:
        """The answer to `question`, a current one before a stale one; None where there is none.

        Raises `InputError` when the URL cannot be reached.
        """
        best: StoredAnswer | None = None
        for read in self._candidates(question.digest[:32]):
            answer = self._read(read, question)
            if answer is not None and not answer.stale:
                return answer
            best = best or answer
        return best

    def keep(self, question: Question, value: Mapping[str, Any], seconds: float, made_with: Mapping[str, str]) -> StoredAnswer:
        """Keep what a worker answered, made with the library versions `made_with` in so many seconds.

        When it cannot be written to the URL, `notes` says so: the folder has it.
        """
        made_by = Maker(self._now(question.kind).sources, dict(made_with))
        name = f"{key(question, made_by)}.json"
        stored = {
            "kind": question.kind,
            "fields": question.fields,
            "sources": made_by.sources,
            "versions": made_by.versions,
            "seconds": round(seconds, 1),
            "made": datetime.now(UTC).strftime("%Y-%m-%d"),
            "answer": value,
        }
        write_json(self._folder / name, stored)
        if self._url:
            self._upload(name, json.dumps(stored, sort_keys=True) + "\n")
        return StoredAnswer(value, seconds, made_by)

    def kept(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """Everything of `kind` that this machine has, as stored: for estimates of how long the next takes."""
        for path in (*self._folder.glob("*.json"), *self._shipped.glob("*.json")):
            with suppress(OSError, ValueError):
                stored = json.loads(path.read_text(encoding="utf-8"))
                if stored.get("kind") == kind:
                    yield stored

    def _candidates(self, digest: str) -> Iterator[Callable[[], str]]:
        """Readers of the files that answer a question, nearest source first, newest first."""
        for folder in (self._folder, self._shipped):
            for path in sorted(folder.glob(f"{digest}-*.json"), key=lambda path: -path.stat().st_mtime):
                yield partial(path.read_text, encoding="utf-8")
        if self._url:
            for name in self._at_url:
                if name.startswith(f"{digest}-"):
                    yield partial(self._download, name)

    def _read(self, read: Callable[[], str], question: Question) -> StoredAnswer | None:
        """None for a file that is damaged or answers something else: it is as if it were not there."""
        try:
            stored = json.loads(read())
            if [stored["kind"], stored["fields"]] != [question.kind, json.loads(canonical_json(question.fields))]:
                return None
            made_by = Maker(stored["sources"], stored["versions"])
            return StoredAnswer(stored["answer"], float(stored["seconds"]), made_by, self._now(question.kind).differences(made_by))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @cached_property
    def _remote(self) -> tuple[Any, str]:
        import fsspec

        files, root = fsspec.core.url_to_fs(self._url)
        return files, str(root).rstrip("/")

    @cached_property
    def _at_url(self) -> tuple[str, ...]:
        """Names of the answers at the URL, listed once."""
        with self._reached("read"):
            files, root = self._remote
            if not files.exists(root):
                return ()
            return tuple(str(path).rpartition("/")[2] for path in files.ls(root, detail=False))

    def _upload(self, name: str, text: str) -> None:
        try:
            with self._reached("written to"):
                files, root = self._remote
                files.makedirs(root, exist_ok=True)
                files.pipe_file(f"{root}/{name}", text.encode())
        except InputError as error:  # What was computed is kept here, and a folder that one may only read is a good one.
            self.notes = (*dict.fromkeys((*self.notes, str(error))),)

    def _download(self, name: str) -> str:
        with self._reached("read"):
            files, root = self._remote
            return str(files.cat_file(f"{root}/{name}").decode())

    @contextmanager
    def _reached(self, what: str) -> Iterator[None]:
        """Turn what the URL's file system raises into one message; each has exceptions of its own."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise InputError(
                f"plan.answers={self._url!r} cannot be {what} ({type(error).__name__}: {reason}). Allowed: a folder that fsspec reaches, "
                "such as gs://bucket/folder or s3://bucket/folder, or nothing."
            ) from error
