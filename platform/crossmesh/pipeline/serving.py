"""Serving for people: the base and the adapters that the spec names, until Ctrl-C."""

import time
from pathlib import Path

from crossmesh.adapters.peft_format import adapter_digest
from crossmesh.cluster import require_chips
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.hardware.devices import Tpu
from crossmesh.pipeline.evaluation import BASE, Adapter, serving_adapters
from crossmesh.serve.app import start_server
from crossmesh.serve.gate import key_source
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.sweep.trial import fetch


def named_adapters(spec: ExperimentSpec) -> tuple[Adapter, ...]:
    """The adapters of `serve.adapters`, each checked to be a PEFT folder. Raises `InputError` when one is not, or a name is used twice."""
    found: dict[str, Adapter] = {}
    for entry in spec.serve.adapters:
        name, _, place = entry.partition(":")
        folder = Path(place).expanduser().absolute()
        if name in found or name == BASE:
            raise InputError(f"serve.adapters: the name {name!r} is used twice ({BASE!r} is the base model's). Give each adapter its own.")
        if not folder.is_dir():
            raise InputError(f"serve.adapters: {name}:{place} is not a folder on this machine. Give a PEFT adapter folder.")
        found[name] = Adapter(name, folder, adapter_digest(folder))
    return tuple(found.values())


def serve_until_interrupted(spec: ExperimentSpec, console: Console, output: str) -> None:
    """Serve, print where and with which models, and return at Ctrl-C; nothing is left running."""
    adapters = named_adapters(spec)
    device = spec.hardware.slice.device
    require_chips(device, device.chip_count() if isinstance(device, Tpu) else spec.serve.tp)  # A TPU slice is taken whole.
    with console.stage(f"model: {spec.model.weights}"):
        model = fetch(spec)
        served = serving_adapters(model, adapters, spec.storage.path)
    with console.stage("serve") as stage:
        server = start_server(spec, model.path, served, base_name=BASE, on_progress=stage.say)
    with server:
        console.result(
            "serving; Ctrl-C ends it",
            {"base_url": server.base_url, "models": list(server.models), "api_key": key_source(spec.serve, spec.storage.path)},
            output,
        )
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            console.say("stopping the server")
