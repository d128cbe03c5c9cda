"""A driver for tests: serves what it is told until its standard input closes or it is interrupted, saying what it does as lines of JSON.

Run as `serve_tiny.py <storage> <model folder> <serve.max_loras> [name=adapter folder ...]`.
"""

import json
import os
import sys
from pathlib import Path

from crossmesh.cluster.session import ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.errors import CrossmeshError
from crossmesh.models.weights.fetch import folder_digests
from crossmesh.pipeline.evaluation import served_base
from crossmesh.ray_cleanup import processes_of
from crossmesh.serve.app import start_server


def say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main(storage: str, model: str, max_loras: str, *adapters: str) -> None:
    spec = ExperimentSpec(
        serve=ServeSpec(port=0, max_model_len=256, kv_cache_gib=0.25, max_loras=int(max_loras)), storage=StorageSpec(storage)
    )
    folders = {name: Path(folder) for name, _, folder in (adapter.partition("=") for adapter in adapters)}
    folder: Path | None = None
    try:
        base = served_base(spec, folder_digests(Path(model)))
        with ray_session(spec.storage) as session:
            folder = session.folder
            served = [base.adapter(name, source) for name, source in folders.items()]
            with start_server(
                spec, base, served, sources=tuple(folders.values()), on_progress=lambda message: say(progress=message)
            ) as server:
                say(base_url=server.base_url, api_key=server.api_key, models=server.models, start_s=server.start_s, folder=str(folder))
                sys.stdin.read()
    except KeyboardInterrupt:
        say(interrupted=True)
    except CrossmeshError as error:
        say(error=str(error))
    loaded = [name for name in ("jax", "torch", "transformers", "vllm", "ray.serve.llm") if name in sys.modules]
    say(loaded=loaded, left=processes_of(folder) if folder else [])


if __name__ == "__main__":
    os.environ.pop("CROSSMESH_API_KEY", None)
    main(*sys.argv[1:])
