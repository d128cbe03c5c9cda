"""What a trace says of the torch backend's step of a point on GPUs: from kept answers, or traced now in a worker (`trace_gpu.py`).

Decides what is asked; traces nothing itself and imports no framework.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from crossmesh.config.training import LORA_TARGETS, LoraSpec
from crossmesh.console import Console
from crossmesh.environments import environment
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Gpu
from crossmesh.models.architecture import Json
from crossmesh.models.lora import LoraModule, lora_modules
from crossmesh.plan.compilers.asking import ask
from crossmesh.plan.figures import Compiled
from crossmesh.plan.model import PlannedModel, known_config
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.store.store import WORKERS, AnswerStore, Question, StoredAnswer, stale_warning

KIND = "gpu"
_LIBRARIES = ("torch", "transformers", "peft")
_START_S, _LAYER_S = 12.0, 1.0
"""Seconds that a trace takes to start, and a layer to trace, on two cores: a first guess, until answers tell."""


class GpuTrace:
    """Implements `compilers.Compiler` with fake tensors."""

    def __init__(self, store: AnswerStore, console: Console, cache: Path) -> None:
        """Answers are looked up and kept in `store`, progress is shown on `console`; models were fetched into `cache`."""
        self._store, self._console, self._cache = store, console, cache

    def serves(self, point: TrainingPoint) -> bool:
        """Whether `point` runs on the torch backend, on GPUs, with a base that can be traced and an adapter that can be asked about."""
        if point.backend != "torch" or not isinstance(point.slice.device, Gpu) or point.spec.quantization != "none":
            return False
        return lora_fields(point.model) is not None and known_config(point.spec, self._cache) is not None

    def find(self, point: TrainingPoint) -> Compiled | None:
        """The kept answer, a current one before a stale one."""
        if not self.serves(point):
            return None
        answer = self._store.find(self._question(point))
        return None if answer is None else traced_figures(answer)

    def missing(self) -> str:
        """What to do to have what a trace takes; empty when it is there."""
        absent = [name for name in _LIBRARIES if find_spec(name) is None]
        if not absent or environment(WORKERS[KIND]).python is not None:
            return ""
        return f"A GPU step is traced with {', '.join(absent)}, which this environment lacks: `make install` brings them."

    def compile(self, point: TrainingPoint) -> Compiled:
        """Trace the step of `point` now and keep the answer.

        Raises `InputError` when what it takes is not installed or the step cannot be traced, `CrossmeshError` when the worker dies.
        """
        if reason := self.missing():
            raise InputError(reason)
        title = f"Tracing the step on one of {point.mesh.devices} GPUs, {len(point.model.architecture.layers)} layers"
        (answer,) = ask(self._store, self._console, title, [self._question(point)], lambda _: self._expected_s(point))
        return traced_figures(answer)

    def _question(self, point: TrainingPoint) -> Question:
        config = known_config(point.spec, self._cache)
        if config is None:
            raise AssertionError("only points that `serves` is true of are asked about")
        return trace_question(point, config)

    def _expected_s(self, point: TrainingPoint) -> float:
        """Seconds that a trace takes, by what others of the same model took if there are any."""
        config = known_config(point.spec, self._cache)
        taken = [one["seconds"] for one in self._store.kept(KIND) if one["fields"]["config"] == config]
        return median(taken) if taken else _START_S + _LAYER_S * len(point.model.architecture.layers)


def trace_question(point: TrainingPoint, config: Json) -> Question:
    """Everything that the step of `point` depends on; `config` is the model's config.json."""
    return Question(
        KIND,
        {
            "config": dict(config),
            "dtype": point.spec.dtype,
            "quantization": point.spec.quantization,
            "lora": {**(lora_fields(point.model) or {}), "dropout": point.dropout},
            "clip": point.clip,
            "remat": point.remat,
            "attention": point.attention,
            "mesh": asdict(point.mesh),
            "micro": point.micro,
            "length": point.length,
            "packed": point.packed,
            "accumulates": point.batch > point.micro * point.mesh.dp_size,
        },
    )


@lru_cache(maxsize=256)
def lora_fields(model: PlannedModel) -> Mapping[str, Any] | None:
    """Rank, targets and other ranks by module that make the adapter of `model`, rank 0 where all weights are trained.

    None for one that targets cannot say: an adapter of other code may leave out some layers.
    """
    if model.full:
        return {"rank": 0, "targets": list(LORA_TARGETS), "rank_pattern": {}}
    rank = Counter(module.rank for module in model.modules).most_common(1)[0][0]
    targets = tuple(name for name in LORA_TARGETS if any(module.target.name == name for module in model.modules))
    pattern = {module.target.hf: module.rank for module in model.modules if module.rank != rank}
    again = lora_modules(LoraSpec(rank=rank, targets=targets, rank_pattern=pattern), model.architecture)
    if _ranks(again) != _ranks(model.modules):
        return None
    return {"rank": rank, "targets": list(targets), "rank_pattern": pattern}


def _ranks(modules: tuple[LoraModule, ...]) -> dict[str, int]:
    return {module.target.hf: module.rank for module in modules}


def traced_figures(answer: StoredAnswer) -> Compiled:
    """An answer of the worker as figures."""
    result = answer.value
    return Compiled(
        by=f"{answer.maker.named('torch')}, fake tensors",
        hbm_bytes=result["hbm_bytes"],
        memory=dict(result["memory"]),
        flops=result["flops"],
        bytes=result["bytes"],
        seconds=None,
        extrapolated=False,
        warnings=stale_warning(answer.stale),
    )
