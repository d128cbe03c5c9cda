"""The serving table of arXiv 2605.25645 as data, in our own words, and which of its cells cannot be."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from crossmesh.bench.plausible import Flag, Seen, beyond_physics
from crossmesh.hardware.catalogue import find_slice
from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.model import planned_model
from crossmesh.plan.serving.point import ServingPoint

_SEQUENCES = 256
"""vLLM's own `max_num_seqs` for a server: the paper names no other."""


@dataclass(frozen=True)
class PaperCell:
    """One cell: a load on one server."""

    hardware: str
    tp: int
    kv_dtype: str
    prompt: int
    output: int
    load: str
    tokens_per_s: float
    """Peak over the rates that were tried."""
    ttft_s: float
    tpot_s: float | None = None

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.hardware} {self.prompt}/{self.output} {self.load}".strip()


def _on_tpu(*values: Any) -> PaperCell:
    return PaperCell("tpu_v6e_8", 8, "fp8_e5m2", *values)


def _on_gpu(*values: Any) -> PaperCell:
    return PaperCell("gpu_2xh100", 2, "bfloat16", *values)


CELLS = (
    _on_tpu(512, 256, "burst", 1403, 0.045),
    _on_gpu(512, 256, "burst", 1490, 0.051),
    _on_tpu(1024, 512, "QPS 4", 1404, 0.049),
    _on_gpu(1024, 512, "", 1387, 0.058),
    _on_tpu(4096, 512, "QPS 4", 1206, 0.061, 0.0239),
    _on_gpu(4096, 512, "", 728, 1.443, 0.0312),
    _on_tpu(8192, 512, "", 482, 1.013, 0.031),
    _on_gpu(8192, 512, "", 449, 7.202, 0.045),
    _on_tpu(15360, 512, "", 474, 0.062, 0.0135),
    _on_gpu(15360, 512, "", 326, 0.099, 0.019),
    _on_tpu(128, 256, "64 prompts", 3253, 0.235, 0.0187),
    _on_gpu(128, 256, "64 prompts", 3158, 0.475, 0.0184),
)


def judged_cells() -> tuple[tuple[PaperCell, tuple[Flag, ...]], ...]:
    """Every cell with its flags."""
    model = planned_model(parse_architecture(architecture_config("gemma4_31b"), "gemma4_31b.json"), ())
    judged = []
    for cell in CELLS:
        point = ServingPoint(
            model, find_slice(cell.hardware), cell.tp, "bfloat16", cell.kv_dtype, 16384, _SEQUENCES, 0.9, cell.prompt, cell.output, 0, 8192
        )
        seen = Seen(
            cell.prompt,
            cell.output,
            ttft_s=cell.ttft_s,
            tpot_s=cell.tpot_s,
            requests_per_s=cell.tokens_per_s / cell.output,
            in_flight=float(_SEQUENCES),
        )
        judged.append((cell, beyond_physics(seen, point)))
    return tuple(judged)


def serving_json() -> dict[str, Any]:
    """The judged table as JSON values."""
    judged = judged_cells()
    return {
        "report": "paper",
        "cells": [
            {"name": cell.name, **asdict(cell), "comparable": not flags, "flags": [asdict(one) for one in flags]} for cell, flags in judged
        ],
        "flagged": [cell.name for cell, flags in judged if flags],
    }


def serving_table() -> Group:
    """The judged table for a person."""
    judged = judged_cells()
    table = Table(title=Text("arXiv 2605.25645, serving: what its chips allow"), title_justify="left")
    for heading in ("cell", "tok/s", "TTFT ms", "TPOT ms", ""):
        table.add_column(heading, justify="left" if heading in ("cell", "") else "right")
    for cell, flags in judged:
        tpot = f"{1e3 * cell.tpot_s:g}" if cell.tpot_s else ""
        verdict = ", ".join(flag.kind for flag in flags)
        table.add_row(cell.name, f"{cell.tokens_per_s:,}", f"{1e3 * cell.ttft_s:g}", tpot, verdict, style="red" if flags else "")
    return Group(table, *(Text(f"{cell.name}: {flag.text}", style="red") for cell, flags in judged for flag in flags))
