"""The training worker: what Ray Train runs in the worker environment, from the rows to the exported adapter.

It joins data, backend and loop; framework modules are imported here only when the backend that needs them is chosen.
"""

import json
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from typing import TextIO

from crossmesh.adapters.peft_format import write_adapter
from crossmesh.data.batches import PackedBatch
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.packing import build_batch, plan_steps
from crossmesh.data.sources import load_rows
from crossmesh.errors import CrossmeshError
from crossmesh.files import canonical_json, digest_text, write_json, write_text
from crossmesh.models.families import read_architecture
from crossmesh.models.targets import expand_targets, hf_module_names
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.train.assignment import Assignment
from crossmesh.train.backend import Backend, TrainingSetup
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import Event, StageEvent, to_json
from crossmesh.train.loop import Plan, run

LOOP_KEY = "assignment"
"""Key of the `Assignment` in Ray Train's loop configuration."""


def train_loop_per_worker(config: Mapping[str, Assignment]) -> None:
    """Run one attempt. A `CrossmeshError` is written down for the driver; anything else is, and fails the Ray Train run as well."""
    assignment = config[LOOP_KEY]
    try:
        with assignment.events.open("a", encoding="utf-8") as stream:
            _train(assignment, stream)
    except CrossmeshError as error:
        write_json(assignment.error, {"exit_code": error.exit_code, "message": str(error)})
    except BaseException:
        write_text(assignment.traceback, traceback.format_exc())
        raise


def _train(assignment: Assignment, stream: TextIO) -> None:
    spec, model = assignment.spec, assignment.model

    def emit(event: Event) -> None:
        stream.write(json.dumps(to_json(event)) + "\n")
        stream.flush()

    emit(StageEvent("reading the data"))
    tokenizer = ChatTokenizer(model.path)
    data = load_rows(spec.data, tokenizer, assignment.cache)
    plans = plan_steps([len(row.tokens) for row in data.rows], spec)
    sequences = spec.micro_batch * spec.mesh_shape.batch_ways

    def batch_of(step: int) -> PackedBatch:
        return build_batch(plans[step], data.rows, sequences, spec.sequence_length, tokenizer.pad_id)

    backend = make_backend(spec)
    setup = TrainingSetup.of(spec, model.path, assignment.cache / "compiled")
    identity = digest_text(canonical_json([assignment.identity, data.digest]))
    done = run(
        backend,
        setup,
        batch_of,
        Plan(spec.optim.steps, spec.checkpoint.every_steps),
        CheckpointStore(assignment.run_folder / "checkpoints", identity, spec.checkpoint.keep),
        emit,
        assignment.stop.exists,
    )
    if not done.finished:
        return
    emit(StageEvent("exporting the adapter"))
    shutil.rmtree(assignment.adapter, ignore_errors=True)  # Without a result, what lies there is of an attempt that did not end.
    digest = write_adapter(
        assignment.adapter,
        backend.export(),
        rank=spec.lora.rank,
        alpha=spec.lora.alpha,
        dropout=spec.lora.dropout,
        base_model=spec.model.weights,
        modules=hf_module_names(expand_targets(read_architecture(model.path), spec.lora.targets)),
    )
    write_json(
        assignment.result,
        {
            "identity": assignment.identity,
            "data_digest": data.digest,
            "adapter_digest": digest,
            "history": [asdict(event) for event in done.history],
        },
    )


def make_backend(spec: ExperimentSpec) -> Backend:
    """Return the backend of the spec, importing its framework."""
    if spec.backend_name == "jax":
        from crossmesh.train.jax_backend import JaxBackend

        return JaxBackend()
    from crossmesh.train.torch_backend import TorchBackend

    return TorchBackend()
