"""Many adapters on one engine: each answers as it does alone, and mixed traffic costs little more than one adapter's.

The engine has the arguments that a server of the same spec gives it and is asked without a server in between, which would hide a part of
what adapters cost. Without a model on the command line it is SmolLM2. Adapters are made up.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import ModelSpec
from crossmesh.console import Console
from crossmesh.errors import require
from crossmesh.hardware.devices import Cpu
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.vllm.settings import engine_settings
from crossmesh.trial.trial import cache_folder
from crossmesh.verify.checks import PLACEHOLDER_MODEL
from crossmesh.verify.process import measure
from crossmesh.verify.random_adapters import write_random_adapter
from crossmesh.verify.result import CheckResult, Limit

MIXED_BOUND = 0.9
"""Generated tokens per second of traffic over all adapters, over those of traffic on one."""

_SPREAD = 0.3
"""Of the made-up adapters: at 0.1, five of twenty gave another's answer on SmolLM2."""


@dataclass(frozen=True)
class AdapterSizes:
    """What the engine is asked; the defaults are the check's."""

    adapters: int = 20
    rank: int = 16
    requests: int = 20
    """At once, in each turn of a contender."""
    prompt: int = 96
    """Tokens of a prompt. Conversations of the Azure trace of 2023 have 5.5 for each generated token, this has 4."""
    tokens: int = 24
    rounds: int = 7


def verify_adapters(spec: ExperimentSpec, folder: Path, console: Console, sizes: AdapterSizes | None = None) -> CheckResult:
    """Serve made-up adapters of `spec.model` on one CPU engine in a process of its own, and compare.

    Raises `InputError` for other hardware, for `lora.rank=0`, and for bfloat16, whose rounding decides between near ties.
    """
    sizes = sizes or AdapterSizes(rank=spec.lora.rank)
    require(isinstance(spec.hardware.slice.device, Cpu), "hardware.name", spec.hardware.name, "cpu in this check")
    require(spec.model.dtype == "float32", "model.dtype", spec.model.dtype, "float32 in this check: it compares tokens")
    require(not spec.lora.full, "lora.rank", spec.lora.rank, "a positive number in this check: the rank of its adapters")
    model = ModelSpec() if spec.model == PLACEHOLDER_MODEL else spec.model
    with console.stage(f"model: {model.weights}") as stage:
        wanted = {"models": {"base": (model.family, model.weights)}, "cache": str(cache_folder(spec))}
        found = measure("train/torch", "crossmesh.verify.fetch_models", wanted, folder / "model.log", stage)["base"]
    base = ServedBase("base", Path(found["path"]), found["weights_digest"], folder / "forms")
    with console.stage("adapters"):
        names = [f"adapter{number}" for number in range(sizes.adapters)]
        sources = {name: write_random_adapter(base.folder, folder / name, seed, sizes.rank, _SPREAD) for seed, name in enumerate(names)}
        adapters = [base.adapter(name, source) for name, source in sources.items()]
    serve = replace(
        spec.serve,
        max_num_seqs=sizes.requests,
        max_loras=sizes.adapters,
        max_lora_rank=sizes.rank,
        max_model_len=max(spec.serve.max_model_len, sizes.prompt + sizes.tokens),
        prefix_caching=False,  # Every round must compute its prompts.
    )
    settings = engine_settings(replace(spec, serve=serve), base, adapters)
    request = {"model": str(base.folder), "engine": dict(settings.engine_kwargs), **asdict(sizes), "adapters": dict(settings.adapters)}
    variables = {**settings.variables, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with console.stage(f"{sizes.adapters} adapters on one engine") as stage:
        measured = measure(settings.kind, f"{__package__}.traffic_vllm", request, folder / "engine.log", stage, variables)
    return judge_adapters(measured, {"model": model.weights, "sizes": asdict(sizes)})


def judge_adapters(measured: Mapping[str, Any], settings: Mapping[str, Any]) -> CheckResult:
    """Hold what the engine did against the bounds."""
    limits = (
        Limit("answers_unlike_alone", measured["unlike_alone"], 0),
        Limit("answers_like_another_model", measured["like_another"], 0),
        Limit("mixed_over_one_adapter", measured["ratios"]["mixed_over_one_adapter"]["median"], MIXED_BOUND, at_least=True),
    )
    return CheckResult("adapters", limits, {**settings, **measured})
