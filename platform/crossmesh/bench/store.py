"""Measurements on disk, one file each, so that a benchmark that was interrupted goes on where it was. Knows no server."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crossmesh.bench.cells import Cell
from crossmesh.bench.measured import Measurement, read_measurement
from crossmesh.bench.workload import make_workload
from crossmesh.config.bench import BenchSpec
from crossmesh.errors import InputError
from crossmesh.files import canonical_json, digest_file, digest_text, read_json, write_json
from crossmesh.plan.serving.batching import LoadRequest
from crossmesh.plan.serving.traces import FORM

_READING = 2
"""Raised whenever a trace is read as other requests than before."""


def identity_of(server: Mapping[str, Any], bench: BenchSpec) -> str:
    """SHA-256 over what makes measurements of one cell alike: what the server is, and how it is asked.

    Limits, repeats and the list of cells are not in it: they change no measurement; a cell has its number of requests, whichever of
    `requests` and `seconds` it follows from. Raises `InputError` where the trace is not a file, or the workload has no such options.
    """
    asked = {
        "seed": bench.seed,
        "cache": bench.cache,
        "warmup": bench.warmup,
        "burstiness": bench.burstiness,
        "trace": [trace_digest(bench), bench.time_scale, bench.length_scale, _READING] if bench.trace else [],
    }
    record = dict(make_workload(bench).record())
    return digest_text(canonical_json([dict(server), asked, *([record] if record else [])]))


def trace_digest(bench: BenchSpec) -> str:
    """SHA-256 of what the trace holds; empty without one. Raises `InputError` where it is not a file."""
    if not bench.trace:
        return ""
    if not Path(bench.trace).is_file():
        raise InputError(f"bench.trace={bench.trace} does not exist. Give {FORM}.")
    return digest_file(Path(bench.trace))


class Store:
    """The measurements of one server under `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, cell: Cell, repeat: int) -> Measurement | None:
        """A kept measurement; None where there is none, or a damaged one."""
        try:
            kept = read_json(self._path(cell, repeat))
            requests = [LoadRequest(*one) for one in kept["requests"]]
            seen = {**kept["seen"], "notes": tuple(kept["seen"]["notes"])}
            return read_measurement(requests, kept["said"], **seen)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return None

    def write(
        self, cell: Cell, repeat: int, requests: Sequence[LoadRequest], said: Mapping[str, Any], seen: Mapping[str, Any]
    ) -> Measurement:
        """Keep a measurement and return it."""
        kept = {
            "cell": asdict(cell),
            "requests": [[one.arrival_s, one.prompt, one.output, one.shared] for one in requests],
            "said": dict(said),
            "seen": {**seen, "notes": list(seen["notes"])},
        }
        write_json(self._path(cell, repeat), kept)
        return read_measurement(requests, said, **seen)

    def _path(self, cell: Cell, repeat: int) -> Path:
        return self.folder / "cells" / f"{cell.name}_{cell.requests}" / f"{repeat}.json"
