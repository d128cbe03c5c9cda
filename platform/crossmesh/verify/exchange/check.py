"""One adapter is one model on three engines: Tunix, transformers with PEFT, and vLLM.

Without a model on the command line it is a tiny model of every family, each with a random adapter of ranks and alphas by module. With
`model.weights` or `lora.adapter` it is the user's own, and what comes out is the adapter's proof (`adapters/proof.py`). Engines run in
processes of their own, on the CPU; this file starts them, and holds what they say against the bounds.
"""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossmesh.adapters.init_adapter import adapted_modules, check_start
from crossmesh.adapters.initial import FloatArray
from crossmesh.adapters.merge import merge
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import OpenAdapter, adapter_digest, open_adapter, store_adapter, write_serving_adapter
from crossmesh.adapters.sources import find_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LoraSpec, ModelSpec
from crossmesh.console import Console
from crossmesh.errors import CrossmeshError, InputError, require
from crossmesh.models.architecture import Architecture
from crossmesh.models.families.registry import parse_architecture, read_architecture
from crossmesh.models.lora import largest_rank, lora_modules
from crossmesh.models.probe import probe_tokens
from crossmesh.models.weights.checkpoints import open_checkpoint
from crossmesh.models.weights.random_weights import architecture_config, architecture_names
from crossmesh.models.weights.stores import LocalStore
from crossmesh.track.trackers import open_tracker
from crossmesh.verify.checks import PLACEHOLDER_MODEL
from crossmesh.verify.exchange.figures import agreement, logprob_difference
from crossmesh.verify.exchange.proof import keep_proof
from crossmesh.verify.process import measure
from crossmesh.verify.random_adapters import random_arrays
from crossmesh.verify.result import CheckResult, Limit

LOGITS_BOUND = {"float32": 1e-3, "bfloat16": 0.5}
"""Largest difference of a logit over the spread of all. Engines add in their own orders: 1e-5 is usual in float32; a wrong scale, name or
rotary base gives 0.1 and more."""
KL_BOUND = {"float32": 1e-5, "bfloat16": 0.05}
"""Nats at the worst position. Grows with the square of what logits are apart."""
TOP1_BOUND = {"float32": 0.97, "bfloat16": 0.8}
"""Of 80 positions two may be near ties that rounding decides."""
TOKEN_BOUND = {"float32": 1e-3, "bfloat16": 0.5}
"""Logits, and nats of vLLM's log-probabilities: what a served token may be worth less than the best one on torch. 0 unless it is a tie."""
MERGED_BOUND = {"exact": (1e-3, 1e-5), "rounded": (0.5, 0.05)}
"""Logits and nats of the merged model from the adapter beside its base: as between engines where the checkpoint keeps float32, and one
rounding of every weight where it does not."""
EFFECT_BOUND = 1e-3
"""Nats between base and adapter at the worst position, 100 times what rounding may do: an adapter without effect proves nothing."""
COPY_NEEDED = 2.0
"""Times `TOKEN_BOUND` that the plain form must be off by where K and V share a projection, or the copy in the serving form must go."""

_RANDOM = LoraSpec(rank=4, alpha=4.0, use_rslora=True, rank_pattern={"q_proj": 8, "down_proj": 3}, alpha_pattern={"up_proj": 2.0})
_SPREAD = 0.2
"""Of a made-up adapter: large enough that tokens change, small enough that the model does not fall apart."""
_NEW = 32
"""Greedy tokens after each probe."""


@dataclass(frozen=True)
class ExchangeSubject:
    """One model with one adapter, ready for the engines."""

    name: str
    model: Path
    architecture: Architecture
    adapter: OpenAdapter
    files: Path
    digests: Mapping[str, str]
    """SHA-256 of `base` and `adapter`, of the `result` of merging them, and of the `serving` form."""
    random: bool
    """Whether the adapter is made up."""
    exact: bool
    """Whether the checkpoint keeps float32, so that merging rounds nothing away."""
    shared: bool
    """Whether the serving form has arrays that the adapter has not."""

    @property
    def paths(self) -> dict[str, str]:
        """What the engines are told."""
        parts = {"model": self.model, "adapter": self.adapter.folder, "merged": self.files / "merged", "files": self.files}
        return {key: str(path) for key, path in parts.items()}

    @property
    def forms(self) -> dict[str, str]:
        """Folders of the adapter that vLLM serves, by what they are."""
        served = {"served": str(self.files / "served")}
        return {**served, "plain": str(self.adapter.folder)} if self.shared else served

    def array(self, name: str) -> FloatArray:
        """What an engine left."""
        values: FloatArray = np.load(self.files / f"{name}.npy")
        return values


def verify_exchange(spec: ExperimentSpec, folder: Path, console: Console) -> CheckResult:
    """Take one adapter of each model through every engine and compare.

    Raises `InputError` for full fine-tuning (there is no adapter), and for an adapter that is not of this base.
    """
    require(not spec.lora.full, "lora.rank", spec.lora.rank, "a positive rank in this check: it is about adapters")
    every = spec.model == PLACEHOLDER_MODEL and not spec.lora.adapter
    models = tiny_models() if every else {"model": spec.model}
    with console.stage("models") as stage:
        request = {
            "models": {name: (model.family, model.weights) for name, model in models.items()},
            "cache": str(spec.storage.path / "cache"),
        }
        fetched = measure("train/torch", "crossmesh.verify.fetch_models", request, folder / "models.log", stage)
    given = None
    if spec.lora.adapter and not every:
        given = find_adapter(spec.lora.adapter, spec.storage, lambda: open_tracker(spec.tracking, spec.storage), "lora.adapter")
    with console.stage("adapters: serving form, merged model") as stage:
        subjects = []
        for done, (name, base) in enumerate(fetched.items()):
            stage.progress("models", done, len(fetched))
            lora = _random_lora(Path(base["path"])) if every else spec.lora
            subjects.append(prepare_subject(name, base, lora, given.folder if given else None, folder / name))
    answers = _run_engines(subjects, spec.model.dtype, folder, console)
    judged = {one.name: judge_exchange(one, answers[one.name], spec.model.dtype) for one in subjects}
    for one in subjects:
        shutil.rmtree(one.files / "merged", ignore_errors=True)
    if every:
        return _of_all(judged)
    limits, figures = judged["model"]
    result = CheckResult("exchange", tuple(limits), figures)
    return keep_proof(result, folder, given.run_id if given else "", spec)


def _random_lora(folder: Path) -> LoraSpec:
    """`_RANDOM`, with the patterns that name modules of the model in `folder`: routed experts are not adapted."""
    names = [module.target.hf for module in lora_modules(LoraSpec(), read_architecture(folder))]

    def fits(leaf: str) -> bool:
        return any(name.endswith(leaf) for name in names)

    return replace(
        _RANDOM,
        rank_pattern={leaf: rank for leaf, rank in _RANDOM.rank_pattern.items() if fits(leaf)},
        alpha_pattern={leaf: alpha for leaf, alpha in _RANDOM.alpha_pattern.items() if fits(leaf)},
    )


def tiny_models() -> dict[str, ModelSpec]:
    """A random model of every architecture that is shipped for tests, by its name."""
    names = [name for name in architecture_names() if name.startswith("tiny_")]
    return {name: ModelSpec(parse_architecture(architecture_config(name), name).family, f"random://{name}@0") for name in names}


def prepare_subject(name: str, base: Mapping[str, str], lora: LoraSpec, given: Path | None, files: Path) -> ExchangeSubject:
    """Make adapter, serving form, merged model and probes of one model in `files`. `given` is the user's adapter; None makes one up."""
    model = Path(base["path"])
    architecture = read_architecture(model)
    files.mkdir(parents=True)
    folder = given or files / "adapter"
    if given is None:
        modules = lora_modules(lora, architecture)
        store_adapter(folder, random_arrays(modules, 0, _SPREAD), AdapterConfig.of(modules, 0.0, base["path"]), base["weights_digest"])
    adapter = open_adapter(folder)
    if given is not None:
        check_start(adapter, lora, architecture, base["weights_digest"])
    serving = write_serving_adapter(folder, files / "served", architecture)
    store = LocalStore(model)
    merged = merge(adapter, store, files / "merged", lambda _done, _all: None)
    np.save(files / "tokens.npy", probe_tokens(architecture.vocab))
    return ExchangeSubject(
        name=name,
        model=model,
        architecture=architecture,
        adapter=adapter,
        files=files,
        digests={
            "base": base["weights_digest"],
            "adapter": adapter_digest(folder),
            "result": merged.weights_digest,
            "serving": serving,
        },
        random=given is None,
        exact=all(tensor.dtype == "F32" for tensor in open_checkpoint(store).tensors.values()),
        shared=open_adapter(files / "served").config.modules != adapter.config.modules,
    )


def _run_engines(subjects: list[ExchangeSubject], dtype: str, folder: Path, console: Console) -> dict[str, dict[str, Any]]:
    """What each engine says of each subject, by the subject's name: its answer, or the reason why it has none."""
    results: dict[str, dict[str, Any]] = {one.name: {} for one in subjects}
    # vLLM first: torch says what its tokens are worth. One engine a process, as none serves two models.
    for one in subjects:
        rank = largest_rank(adapted_modules(LoraSpec(), one.adapter.folder, one.architecture))
        request = {"model": str(one.model), "files": str(one.files), "forms": one.forms, "new": _NEW, "dtype": dtype}
        request |= {"rank": rank, "vocab": one.architecture.vocab}
        # One process: a child of vLLM's would import everything again.
        variables = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        with console.stage(f"vLLM: {one.name}") as stage:
            try:
                results[one.name]["vllm"] = measure(
                    "serve/vllm-cpu", f"{__package__}.side_vllm", request, folder / f"{one.name}-vllm.log", stage, variables
                )
            except InputError as error:
                results[one.name]["vllm"] = {"refused": str(error)}
            except CrossmeshError as error:
                results[one.name]["vllm"] = {"failed": str(error)}
    for backend in ("torch", "jax"):
        request = {"models": {one.name: one.paths for one in subjects}, "dtype": dtype}
        with console.stage(f"{backend}: {len(subjects)} models") as stage:
            try:
                answers = measure(f"train/{backend}", f"{__package__}.side_{backend}", request, folder / f"{backend}.log", stage)
            except CrossmeshError as error:
                answers = {one.name: {"failed": str(error)} for one in subjects}
        for name, answer in answers.items():
            results[name][backend] = answer
    return results


def judge_exchange(subject: ExchangeSubject, answers: Mapping[str, Mapping[str, Any]], dtype: str) -> tuple[list[Limit], dict[str, Any]]:
    """Limits and figures of one model. An engine that refuses a model takes no part, and its reason is among the figures."""
    failed = {engine: answer["failed"] for engine, answer in answers.items() if "failed" in answer}
    refused = {engine: answer["refused"] for engine, answer in answers.items() if "refused" in answer}
    there = [engine for engine in answers if engine not in failed and engine not in refused]
    limits = [Limit("failed_engines", len(failed), 0), Limit("engines", len(there), 2, at_least=True)]
    figures: dict[str, Any] = {"digests": dict(subject.digests), "engines": there, "failed": failed, "refused": refused}
    figures |= {"modules": len(subject.adapter.config.modules), "dtype": dtype}
    if "torch" not in there:
        return [*limits, Limit("reference", 0, 1, at_least=True)], figures
    reference = {which: subject.array(f"torch_{which}") for which in ("base", "adapted")}
    effect = agreement(reference["adapted"], reference["base"])
    kind = "exact" if subject.exact and dtype == "float32" else "rounded"
    merged = agreement(subject.array("torch_merged"), reference["adapted"])
    limits += [
        Limit("effect_kl", effect.kl, EFFECT_BOUND, at_least=True),
        Limit("merged_logits", merged.relative, MERGED_BOUND[kind][0]),
        Limit("merged_kl", merged.kl, MERGED_BOUND[kind][1]),
    ]
    figures |= {"effect": asdict(effect), "merged": asdict(merged)}
    if "jax" in there:
        agreements = {which: agreement(subject.array(f"jax_{which}"), logits) for which, logits in reference.items()}
        limits += [
            Limit("round_trip", answers["jax"]["round_trip"], 0.0),
            Limit("jax_logits", max(one.relative for one in agreements.values()), LOGITS_BOUND[dtype]),
            Limit("jax_kl", max(one.kl for one in agreements.values()), KL_BOUND[dtype]),
            Limit("jax_top1", min(one.top1 for one in agreements.values()), TOP1_BOUND[dtype], at_least=True),
        ]
        figures["jax"] = {**answers["jax"], **{which: asdict(one) for which, one in agreements.items()}}
    if "vllm" in there:
        served, measured = _judge_served(subject, answers, reference, dtype)
        limits += served
        figures["vllm"] = measured
    return limits, figures


def _judge_served(
    subject: ExchangeSubject, answers: Mapping[str, Mapping[str, Any]], reference: Mapping[str, FloatArray], dtype: str
) -> tuple[list[Limit], dict[str, Any]]:
    """What vLLM serves, held against torch: tokens and log-probabilities, and whether the copy in the serving form is still needed."""
    gaps: Mapping[str, float] = answers["torch"]["gaps"]
    sequences = {form: subject.array(f"vllm_{form}")[:, -_NEW:] for form in ("base", *subject.forms)}
    changed = int((sequences["served"] != sequences["base"]).sum())
    apart = {
        form: logprob_difference(np.load(subject.files / f"vllm_{form}_ids.npy"), subject.array(f"vllm_{form}_values"), reference[which])
        for form, which in (("base", "base"), ("served", "adapted"))
    }
    bound = TOKEN_BOUND[dtype]
    limits = [
        Limit("served_tokens", gaps["served"], bound),
        Limit("served_base_tokens", gaps["base"], bound),
        Limit("served_log_probabilities", max(apart.values()), bound),
        Limit("served_tokens_changed_by_adapter", changed, 1, at_least=True),
    ]
    figures: dict[str, Any] = {"token_gap": dict(gaps), "log_probabilities": apart, "tokens": sequences["served"].size}
    figures |= {"tokens_changed_by_adapter": changed, **answers["vllm"]}
    if "plain" in gaps:
        limit = Limit("plain_form_still_wrong", gaps["plain"], COPY_NEEDED * bound, at_least=True)
        figures["serving_form"] = "needed: this engine does not apply the change of K to V" if limit.passed else _COPY_MUST_GO
        if subject.random:  # A user's adapter may change K so little that no token shows it.
            limits.append(limit)
    return limits, figures


_COPY_MUST_GO = (
    "not needed any more: this vLLM serves the plain adapter right where K and V share a projection, so the copy would count twice or "
    "for nothing. Remove serving_form from crossmesh/adapters/peft_format.py"
)


def _of_all(judged: Mapping[str, tuple[list[Limit], dict[str, Any]]]) -> CheckResult:
    """The worst of every bound over all models, and whose it is."""
    worst: dict[str, tuple[Limit, str]] = {}
    for name, (limits, _) in judged.items():
        for limit in limits:
            known = worst.get(limit.name)
            # A value that is not a number is worst of all.
            if known is None or (limit.worst < known[0].worst if limit.at_least else not limit.worst <= known[0].worst):
                worst[limit.name] = (replace(limit), name)
    figures: dict[str, Any] = {name: figures for name, (_, figures) in judged.items()}
    figures["worst_model"] = {limit: name for limit, (_, name) in worst.items()}
    return CheckResult("exchange", tuple(limit for limit, _ in worst.values()), figures)
