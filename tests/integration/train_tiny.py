"""A driver for tests: trains a tiny model through `train()`, saying every event as a line of JSON, and at exit what it has loaded.

Tests reach it through the fixture `tiny`, to start it in a process of its own.
"""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from crossmesh.cluster import call_worker, ray_session
from crossmesh.models.weights import fetch_model
from crossmesh.spec.experiment import BackendSpec, BatchSpec, CheckpointSpec, DataSpec, ExperimentSpec, ModelSpec, OptimSpec, StorageSpec
from crossmesh.train.events import Event, to_json
from crossmesh.train.launch import train

STEPS = 60


def start(storage: Path, backend: str = "torch", steps: int = STEPS) -> subprocess.Popen[str]:
    """Train in a process group of its own, as a terminal would start it, and in no Ray but its own."""
    write_rows(storage)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2] / "platform")
    command = [sys.executable, __file__, str(storage), backend, str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment)


def said(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    """What a started driver says, line by line; what Ray's own processes print when they are ended is left out."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def tiny_spec(storage: Path, backend: str = "torch", steps: int = STEPS) -> ExperimentSpec:
    return ExperimentSpec(
        model=ModelSpec(family="llama", weights="random://tiny_llama@0"),
        data=DataSpec(source=str(storage / "rows.jsonl"), max_length=96),
        optim=OptimSpec(steps=steps, learning_rate=1e-2),
        batch=BatchSpec(16),
        backend=BackendSpec(backend),
        storage=StorageSpec(str(storage)),
        checkpoint=CheckpointSpec(every_steps=4),
    )


def write_rows(storage: Path) -> None:
    storage.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{a} plus {b}?", "response": f"{a + b}"} for a in range(4) for b in range(4)]
    (storage / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main(storage: Path, backend: str, steps: int) -> None:
    frameworks = ("jax", "torch", "vllm", "transformers", "peft", "flax", "tunix")
    atexit.register(lambda: say(loaded=[name for name in frameworks if name in sys.modules]))
    spec = tiny_spec(storage, backend, steps)

    def hear(event: Event) -> None:
        say(**to_json(event))

    with ray_session(spec.storage) as session:
        say(folder=str(session.folder), pid=os.getpid())
        model = call_worker("train/torch", spec.hardware.slice.device, fetch_model, spec.model, storage / "cache")
        result = train(spec, model, storage / "run", hear)
    say(losses=result.losses, adapter=result.adapter_digest)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
