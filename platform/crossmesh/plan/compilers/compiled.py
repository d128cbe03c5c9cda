"""What XLA says of the step of a point on a TPU slice: from kept answers, or compiled now in a worker (`compile_tpu.py`).

A deep model is compiled at two small depths, whose figures add up to the whole (`depths.py`); each depth is an answer of its own in the
store. Decides what is asked and what the answers say together; compiles nothing itself and imports no framework.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from statistics import median
from typing import Any

from crossmesh.console import Console
from crossmesh.environments import compiler_folder, environment
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Tpu
from crossmesh.models.architecture import Architecture, LayerKind
from crossmesh.plan.compilers.asking import ask
from crossmesh.plan.compilers.depths import Depths, keep_layers, small_depths
from crossmesh.plan.figures import Compiled
from crossmesh.plan.model import PlannedModel
from crossmesh.plan.point import TrainingPoint
from crossmesh.plan.store.store import WORKERS, AnswerStore, Question, StoredAnswer, stale_warning

KIND = "tpu"
_CHIPS = ("v4", "v5e", "v5p", "v6e")
"""Chips that are one device of JAX each, and that libtpu compiles for."""
_LAYER_S = 12.0
"""Seconds that a layer of a 31B model takes to compile on two cores: a first guess, until answers tell."""
_NOT_ASKED = ("layers", "max_positions", "prefix", "multipliers")
"""Of an architecture: said by kind, no part of the step, a matter of names, and constants of the program that cost nothing."""
_COUNTED = ("flops", "bytes", "seconds")


class TpuCompiler:
    """Implements `compilers.Compiler` with libtpu."""

    def __init__(self, store: AnswerStore, console: Console) -> None:
        """Answers are looked up and kept in `store`, progress is shown on `console`."""
        self._store, self._console = store, console

    def serves(self, point: TrainingPoint) -> bool:
        """Whether `point` runs on the JAX backend, on TPUs that libtpu compiles for."""
        return point.backend == "jax" and isinstance(point.slice.device, Tpu) and point.slice.device.chip in _CHIPS

    def find(self, point: TrainingPoint) -> Compiled | None:
        """The kept answer: a current one before a stale one, of equals that of the whole model before an extrapolated one."""
        if not self.serves(point):
            return None
        candidates = []
        for depths in (_WHOLE, _depths(point.model)):
            if depths is not None:
                answers = [self._store.find(compile_question(point, kept)) for kept in depths.layers]
                present = [answer for answer in answers if answer is not None]
                if len(present) == len(answers):
                    candidates.append(together(depths, present))
        return min(candidates, key=lambda one: bool(one.warnings), default=None)

    def missing(self) -> str:
        """What to do to have the compiler; empty when it is there."""
        if (compiler_folder() / "libtpu").is_dir() or environment(WORKERS[KIND]).python is not None:
            return ""
        return "The TPU compiler is not installed: `make compiler` fetches it (700 MB on disk, Google's licence)."

    def compile(self, point: TrainingPoint, *, whole: bool = False) -> Compiled:
        """Compile the step of `point` now, at small depths unless the `whole` model is asked for, and keep the answers.

        Each depth is kept as soon as it is there, so that an interrupted plan goes on where it was. Raises `InputError` when there is no
        compiler or it refuses the step, `CrossmeshError` when it dies.
        """
        if reason := self.missing():
            raise InputError(reason)
        depths = _WHOLE if whole else _depths(point.model) or _WHOLE
        title = f"Compiling for {topology(point)}: {_described(point)}"
        questions = [compile_question(point, kept) for kept in depths.layers]
        return together(depths, ask(self._store, self._console, title, questions, self._expected_s, "seconds, depth"))

    def _expected_s(self, asked: Question) -> float:
        """Seconds that a compilation takes by what others took, of the same model if there are any."""
        kept = list(self._store.kept(KIND))
        alike = [one for one in kept if one["fields"]["model"] == asked.fields["model"]] or kept
        rates = [one["seconds"] / len(one["fields"]["layers"]) for one in alike]
        return (median(rates) if rates else _LAYER_S) * len(asked.fields["layers"])


_WHOLE = Depths(((),), (1.0,))
"""The model as it is; () stands for all of its layers."""


@lru_cache(maxsize=64)
def _depths(model: PlannedModel) -> Depths | None:
    """The small depths of a model; None where it has none, or where a layer would lose the keys and values that it uses."""
    depths = small_depths(_kinds(model))
    if depths is None or any(keep_layers(model.architecture.layers, kept) is None for kept in depths.layers):
        return None
    return depths


def _kinds(model: PlannedModel) -> list[tuple[Any, ...]]:
    """What tells layers apart: their shape and the ranks of their adapters."""
    ranks: list[dict[str, int]] = [{} for _ in model.architecture.layers]
    for module in model.modules:
        ranks[module.target.layer][module.target.name] = module.rank
    return [(layer, *sorted(own.items())) for layer, own in zip(model.architecture.layers, ranks, strict=True)]


def topology(point: TrainingPoint) -> str:
    """What libtpu calls the slice."""
    return f"{point.slice.device.chip}:{point.slice.device.topology}" if isinstance(point.slice.device, Tpu) else ""


def compile_question(point: TrainingPoint, kept: Sequence[int] = ()) -> Question:
    """Everything that the step of `point` depends on, with only the layers `kept` (all when empty)."""
    return Question(
        KIND,
        {
            **model_fields(point.model, tuple(kept)),
            "full": point.model.full,
            "dtype": point.spec.dtype,
            "quantization": point.spec.quantization,
            "dropout": point.dropout,
            "clip": point.clip,
            "remat": point.remat,
            "attention": point.attention,
            "topology": topology(point),
            "mesh": asdict(point.mesh),
            "micro": point.micro,
            "length": point.length,
            "accumulates": point.batch > point.micro * point.mesh.dp_size,
        },
    )


@lru_cache(maxsize=256)
def model_fields(model: PlannedModel, kept: tuple[int, ...]) -> Mapping[str, Any]:
    """The model of a question: sizes, the kinds of layers with the ranks of their adapters, and of which kind each layer is."""
    architecture = model.architecture
    kept = kept or tuple(range(len(architecture.layers)))
    layers, all_kinds = keep_layers(architecture.layers, kept), _kinds(model)
    if layers is None:
        raise AssertionError("depths are chosen so that no layer loses the keys and values that it uses")
    kinds = [(layer, all_kinds[index][1:]) for layer, index in zip(layers, kept, strict=True)]
    different = list(dict.fromkeys(kinds))
    return {
        "model": _sizes(architecture),
        "kinds": [{"layer": _layer_fields(layer), "lora": dict(ranks)} for layer, ranks in different],
        "layers": [different.index(kind) for kind in kinds],
    }


def _layer_fields(layer: LayerKind) -> dict[str, Any]:
    """A layer without the numbers of its rotation, which are constants of the program and cost nothing."""
    fields = asdict(layer)
    del fields["rope"]["settings"]
    return fields


def _sizes(architecture: Architecture) -> dict[str, Any]:
    sizes = {one.name: getattr(architecture, one.name) for one in fields(architecture) if one.name not in _NOT_ASKED}
    if not architecture.attention_softcap:  # A question of before it existed is the same question.
        del sizes["attention_softcap"]
    return {**sizes, "experts": asdict(architecture.experts) if architecture.experts else None}


def together(depths: Depths, answers: Sequence[StoredAnswer]) -> Compiled:
    """What the answers at `depths` say of the whole model."""

    def total(values: Sequence[Any]) -> float | None:
        return None if any(value is None for value in values) else depths.extrapolate(values)

    values = [answer.value for answer in answers]
    memory = {kind: depths.extrapolate([value["memory"].get(kind, 0.0) for value in values]) for kind in values[0]["memory"]}
    counted = {name: total([value.get(name) for value in values]) for name in _COUNTED}
    stale = tuple(dict.fromkeys(reason for answer in answers for reason in answer.stale))
    return Compiled(
        by=f"{answers[0].maker.named('libtpu')}, {answers[0].maker.named('jax')}",
        hbm_bytes=depths.extrapolate([value["hbm_bytes"] for value in values]),
        memory=memory,
        flops=counted["flops"],
        bytes=counted["bytes"],
        seconds=counted["seconds"],
        extrapolated=len(answers) > 1,
        warnings=stale_warning(stale),
    )


def _described(point: TrainingPoint) -> str:
    """The step, for a person."""
    mesh = " ".join(f"{axis}={size}" for axis, size in asdict(point.mesh).items() if size > 1)
    layers = len(point.model.architecture.layers)
    return f"{point.model.architecture.family} of {layers} layers, {mesh or 'one chip'}, micro-batch {point.micro} x {point.length}"
