"""What a benchmark measures: the server that the experiment describes, started when it is needed, or one at a URL."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crossmesh.bench.endpoint import fingerprint_of, server_at
from crossmesh.bench.load import Target
from crossmesh.bench.plausible import Engines
from crossmesh.bench.runner import Terms
from crossmesh.cluster.session import ray_session, require_chips
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.environments import environment
from crossmesh.errors import InputError
from crossmesh.pipeline.evaluation import BASE, served_base
from crossmesh.pipeline.serving import named_adapters
from crossmesh.plan.model import known_architecture
from crossmesh.plan.serving.point import serving_point
from crossmesh.serve.adapters import ServedAdapter, ServedBase
from crossmesh.serve.app import Server, start_server
from crossmesh.serve.record import server_record
from crossmesh.serve.vllm.settings import EngineSettings, engine_settings
from crossmesh.trial.trial import fetch


@dataclass(frozen=True)
class Subject:
    """What is measured."""

    described: Mapping[str, Any]
    """What makes it this server and no other; known before it runs."""
    target: Callable[[], Target]
    """Starts it, if it is not there yet."""
    tokenizer: Path
    longest: int


@dataclass(frozen=True)
class OwnServer:
    """The server that the experiment describes, not started yet."""

    spec: ExperimentSpec
    base: ServedBase
    adapters: tuple[ServedAdapter, ...]
    sources: tuple[Path, ...]
    settings: EngineSettings

    @property
    def described(self) -> dict[str, Any]:
        """What makes it this server and no other."""
        adapters = {adapter.name: str(adapter.folder) for adapter in self.adapters}
        threads = environment(self.settings.kind).variables.get("OMP_NUM_THREADS")
        return {
            "weights": self.base.weights_digest,
            "adapters": adapters,
            "hardware": self.spec.hardware.name,
            **({"emulated": True} if self.settings.stand_in else {}),
            **({"threads": threads} if threads else {}),
            **server_record(self.settings),
        }

    def start(self, console: Console) -> Server:
        """Start it."""
        with console.stage("serve") as stage:
            say = stage.say
            server = start_server(self.spec, self.base, self.adapters, sources=self.sources, on_progress=say, private="benchmark")
            stage.say(f"ready at {server.base_url} after {server.start_s:.0f} s")
        return server


def own_server(spec: ExperimentSpec, console: Console, stack: ExitStack) -> OwnServer:
    """Fetch the model of `spec` within a Ray session that `stack` ends, and return its server, not started yet."""
    stack.enter_context(ray_session(spec.storage))
    require_chips(spec.hardware.slice.device, spec.serving_chips)
    folders = named_adapters(spec)
    with console.stage(f"model: {spec.model.weights}"):
        base = served_base(spec, fetch(spec))
        adapters = tuple(base.adapter(name, folder) for name, folder in folders.items())
    return OwnServer(spec, base, adapters, tuple(folders.values()), engine_settings(spec, base, adapters))


def own_subject(own: OwnServer, console: Console, stack: ExitStack) -> Subject:
    """Our own server as what is measured; once started, `stack` ends it. Raises `InputError` for a `bench.model` that it does not serve."""
    model = own.spec.bench.model or BASE
    if model not in own.settings.models:
        raise InputError(f"bench.model={model!r} is not served. Allowed: {', '.join(own.settings.models)}.")

    def target() -> Target:
        server = stack.enter_context(own.start(console))
        return server_at(server.base_url, model, server.api_key)

    return Subject({**own.described, "model": model}, target, own.base.folder, own.spec.serve.max_model_len)


def url_subject(spec: ExperimentSpec, console: Console) -> Subject:
    """The server at `bench.url`, which must answer."""
    target = server_at(spec.bench.url, spec.bench.model, os.environ.get(spec.bench.api_key_env, ""))
    tokenizer = Path(spec.bench.tokenizer)
    if not spec.bench.tokenizer:
        with ray_session(spec.storage), console.stage(f"tokenizer: {spec.model.weights}"):
            tokenizer = fetch(spec).path
    elif not tokenizer.is_dir():
        raise InputError(f"bench.tokenizer={spec.bench.tokenizer!r} is not a folder. Give the folder of a tokenizer, or leave it empty.")
    said = fingerprint_of(target)
    known = {"fingerprint": said.get("sha256")} if said else {"url": target.origin}
    return Subject({**known, "model": target.model, "hardware": spec.hardware.name}, lambda: target, tokenizer, 0)


def terms_of(spec: ExperimentSpec, longest: int) -> tuple[Terms, list[str]]:
    """What the server is judged by, and what of it is not known."""
    notes = []
    engines = None
    if spec.hardware.slice.chip is None:
        notes.append(f"hardware={spec.hardware.name} has no figures in the catalogue: physical bounds were not checked.")
    elif known_architecture(spec.model, spec.storage.path / "cache") is None:
        notes.append("The model's architecture is not known here: physical bounds were not checked.")
    else:
        engines = _engines(spec)
    price = spec.hardware.price(spec.plan.price, spec.plan.region)
    if spec.hardware.emulated:
        notes.append(f"hardware={spec.hardware.name} is emulated on CPU devices: no cost per token, and its rates are not the hardware's.")
    elif price is None:
        notes.append(f"hardware={spec.hardware.name} has no {spec.plan.price} price in the catalogue: no cost per token.")
    else:
        said = (price.unsold, price.warning(datetime.now(UTC).date(), spec.plan.price_max_age_days))
        notes += [text for text in said if text]
    return Terms(longest, engines, price.usd_per_hour if price else None), notes


def _engines(spec: ExperimentSpec) -> Engines:
    """The engines of `spec`. Stages of layers count as chips that share each layer: no bound is too high that way."""
    serve, point = spec.serve, serving_point(spec)
    return Engines(replace(point, tp=serve.tp * serve.pp), max(serve.replicas, serve.max_replicas, 1), serve.speculative != "none")
