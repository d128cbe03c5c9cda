"""A driver for tests: trains a tiny model through `train()`, saying every event as a line of JSON, and at exit what it has loaded.

Tests reach it through the fixture `tiny`, to start it in a process of its own.
"""

import atexit
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import ray
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

from crossmesh.cluster.calls import call_worker
from crossmesh.cluster.session import ray_session
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.training import BatchSpec, CheckpointSpec, DataSpec, HardwareSpec, ModelSpec, OptimSpec
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.train.events import Event, StepEvent, to_json
from crossmesh.train.launch import train

STEPS = 60


def start(
    storage: Path, steps: int = STEPS, hardware: str = "cpu", drain_at: int = 0, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Train in a process group of its own, as a terminal would start it, and in no Ray but its own, or in that of `environment`.

    At step `drain_at` the node of the worker gets notice that it is taken away.
    """
    write_rows(storage)
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} if environment is None else environment
    path = str(Path(__file__).resolve().parents[2] / "platform")
    command = [sys.executable, __file__, str(storage), str(steps), hardware, str(drain_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**own, "PYTHONPATH": path})


def said(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    """What a started driver says, line by line; what Ray's own processes print when they are ended is left out."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)


def say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def tiny_spec(storage: Path, steps: int = STEPS, hardware: str = "cpu") -> ExperimentSpec:
    return ExperimentSpec(
        model=ModelSpec(family="llama", weights="random://tiny_llama@0"),
        data=DataSpec(source=str(storage / "rows.jsonl"), max_length=96),
        optim=OptimSpec(steps=steps, learning_rate=1e-2),
        batch=BatchSpec(16),
        hardware=HardwareSpec(hardware),
        storage=StorageSpec(str(storage)),
        checkpoint=CheckpointSpec(every_steps=4),
    )


def write_rows(storage: Path) -> None:
    storage.mkdir(parents=True, exist_ok=True)
    rows = [{"prompt": f"{a} plus {b}?", "response": f"{a + b}"} for a in range(4) for b in range(4)]
    (storage / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def drain(run: Path) -> None:
    """Tell Ray that the node of the run's only worker goes in two minutes."""
    node = json.loads(next(run.glob("attempts/*/ranks/0.json")).read_text())["node"]
    client = ray._private.worker.global_worker.gcs_client
    deadline_ms = int((time.time() + 120) * 1000)
    accepted, reason = client.drain_node(node, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "a test", deadline_ms)
    assert accepted, reason


def main(storage: Path, steps: int, hardware: str, drain_at: int) -> None:
    frameworks = ("jax", "torch", "vllm", "transformers", "peft", "flax", "tunix")
    atexit.register(lambda: say(loaded=[name for name in frameworks if name in sys.modules]))
    spec = tiny_spec(storage, steps, hardware)
    drained = False

    def hear(event: Event) -> None:
        nonlocal drained
        say(**to_json(event))
        if isinstance(event, StepEvent) and event.step == drain_at and not drained:
            drained = True
            drain(storage / "run")

    with ray_session(spec.storage) as session:
        say(folder=str(session.folder), pid=os.getpid())
        model = call_worker("train/torch", spec.hardware.slice.device, fetch_model, spec.model, storage / "cache")
        result = train(spec, model, storage / "run", hear)
    say(losses=result.losses, adapter=result.adapter_digest)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
