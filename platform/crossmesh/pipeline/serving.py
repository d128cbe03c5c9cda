"""Serving for people: the base and the adapters that the spec names, until Ctrl-C."""

import json
import time
from functools import partial
from pathlib import Path

from crossmesh.adapters.sources import find_adapter
from crossmesh.cluster.session import require_chips
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.console import Console
from crossmesh.pipeline.evaluation import served_base
from crossmesh.serve.adapters import check_names
from crossmesh.serve.app import place_of, start_server
from crossmesh.serve.applications import check_port
from crossmesh.serve.keys import add_key, key_source, revoke_key
from crossmesh.track.trackers import open_tracker
from crossmesh.trial.trial import fetch

_KEYS_S = 2.0
"""Seconds until keys that were added or revoked count."""


def named_adapters(spec: ExperimentSpec) -> dict[str, Path]:
    """Local folders of `serve.adapters` by name. Raises `InputError` when a source has no adapter, or a name is used twice."""
    named = [(name, source) for name, _, source in (entry.partition(":") for entry in spec.serve.adapters)]
    check_names([name for name, _ in named])
    tracker = partial(open_tracker, spec.tracking, spec.storage)
    found = {}
    for name, source in named:
        found[name] = find_adapter(source, spec.storage, tracker, f"serve.adapters: {name}").folder
    return found


def serve_until_interrupted(spec: ExperimentSpec, console: Console, output: str) -> None:
    """Serve, print where and with which models, and return at Ctrl-C, with nothing left running, or when another run has replaced it."""
    check_port(place_of(spec.serve))
    adapters = named_adapters(spec)
    require_chips(spec.hardware.slice.device, spec.serving_chips)
    with console.stage(f"model: {spec.model.weights}"):
        base = served_base(spec, fetch(spec))
        served = [base.adapter(name, folder) for name, folder in adapters.items()]
    with console.stage("serve") as stage:
        server = start_server(spec, base, served, sources=tuple(adapters.values()), on_progress=stage.say)
    with server:
        console.result(
            "serving; Ctrl-C ends it",
            {
                "base_url": server.base_url,
                "models": list(server.models),
                "api_key": key_source(spec.serve, spec.storage.path),
                "fingerprint": server.fingerprint["sha256"],
            },
            output,
        )
        console.say(_client_snippet(server.base_url, server.models[-1]))
        try:
            while not server.replaced():
                time.sleep(_KEYS_S)
                server = server.renew_keys()
            console.say("another run has replaced this server, or removed it")
        except KeyboardInterrupt:
            console.say("stopping the server")


def _client_snippet(base_url: str, model: str) -> str:
    """Return a command that asks the server something."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    return f"ask it: curl {base_url}/chat/completions -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json' -d '{body}'"


def change_keys(storage: Path, add: str, revoke: str, console: Console, output: str) -> None:
    """Take the API key `revoke` back and make one called `add` (empty: none); print the new key, which is shown this once."""
    if revoke:
        revoke_key(storage, revoke)
    console.result("API keys", {"revoked": revoke or None, "added": add or None, "api_key": add_key(storage, add) if add else None}, output)
