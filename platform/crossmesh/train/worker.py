"""The training worker: what Ray Train runs in the worker environment, from the rows to what is exported.

It joins data, backend and loop; framework modules are imported here only when the backend that needs them is chosen.
"""

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.data.chat import ChatTokenizer
from crossmesh.data.packing import plan_steps
from crossmesh.data.served import unserved_stops
from crossmesh.data.sources import load_rows
from crossmesh.errors import CrossmeshError
from crossmesh.files import write_json, write_text
from crossmesh.models.serving_defaults import ServingDefaults
from crossmesh.objectives.objective import make_objective
from crossmesh.track.load import LoadMeter
from crossmesh.track.system import Values, sampling
from crossmesh.train.backend import Backend, FloatArray, TrainingSetup
from crossmesh.train.events import Event, LoadEvent, StageEvent, StepEvent, SystemEvent, to_json
from crossmesh.train.interruptions import interruptions
from crossmesh.train.loop import Interruption, Plan, run
from crossmesh.train.train_job import TrainJob
from crossmesh.train.trained import write_trained

LOOP_KEY = "job"
"""Key of the `TrainJob` in Ray Train's loop configuration."""


def train_loop_per_worker(config: Mapping[str, TrainJob]) -> None:
    """Run one attempt; Ray Train calls this in every worker.

    A `CrossmeshError` is written down for the driver, anything else as a traceback. With several workers both are raised as well, so that
    Ray ends those that wait for this one.
    """
    from ray.train import get_context

    job, context = config[LOOP_KEY], get_context()
    alone = context.get_world_size() == 1
    try:
        with interruptions(job.stop) as interruption, job.events.open("a", encoding="utf-8") as stream:
            _train(job, context.get_world_rank(), stream, interruption)
    except CrossmeshError as error:
        write_json(job.error, {"exit_code": error.exit_code, "message": str(error)})
        if not alone:
            raise
    except BaseException:
        if not job.traceback.exists():  # The first to fail says why; the others fail in a collective after it.
            write_text(job.traceback, traceback.format_exc())
        raise


@contextmanager
def system_metrics(job: TrainJob, node: int, local_rank: int) -> Iterator[None]:
    """While the block runs, write down what this node is busy with; the first of its workers does that for all."""
    if local_rank or not job.spec.tracking.system_metrics:
        yield
        return
    job.system.mkdir(exist_ok=True)
    with (job.system / f"{node}.jsonl").open("a", encoding="utf-8") as stream:

        def write(values: Values) -> None:
            stream.write(json.dumps(to_json(SystemEvent(f"node_{node}", time.time(), values))) + "\n")
            stream.flush()

        with sampling(write):
            yield


def _train(job: TrainJob, rank: int, stream: TextIO, interruption: Callable[[], Interruption | None]) -> None:
    """Train and export; the leading worker tells its events to `stream`. `rank` is Ray's, until the backend has its own."""
    spec, model = job.placed, job.model
    backend = make_backend(spec)

    def leads() -> bool:
        # JAX numbers the processes of a TPU slice by itself: what leads there need not be what leads for Ray.
        return int(getattr(backend, "rank", rank)) == 0

    meter = LoadMeter()

    def emit(event: Event) -> None:
        if isinstance(event, StepEvent):
            meter.start() if event.first else meter.note()  # The first step compiles, which keeps the machine busy too.
        if leads():
            stream.write(json.dumps(to_json(event)) + "\n")
            stream.flush()

    emit(StageEvent("reading the data"))
    tokenizer = ChatTokenizer(model.path, spec.data.template_date)
    data = load_rows(spec.data, tokenizer, job.cache)
    plans = plan_steps([len(row.tokens) for row in data.rows], spec)
    sequences = spec.micro_batch * spec.mesh_shape.dp_size
    objective = make_objective(spec.objective)

    def batch_of(step: int) -> PackedBatch:
        return objective.collate(plans[step], data.rows, sequences, spec.sequence_length, tokenizer.pad_id)

    if leads():
        job.diverged.unlink(missing_ok=True)
    init_adapter = job.init_adapter.folder if job.init_adapter else None
    setup = TrainingSetup.of(spec, model.path, job.cache / "compiled", init_adapter)
    plan = Plan(
        spec.optim.last_step,
        spec.checkpoint.every_steps,
        job.diverged,
        spec.checkpoint.every_minutes,
        missing_slices=job.spec.mesh.dcn - spec.mesh.dcn,
    )
    done = run(backend, setup, batch_of, plan, job.checkpoints(data.digest), emit, interruption)
    if load := meter.read():
        emit(LoadEvent(load))
    if done.ended == "finished":
        emit(StageEvent("exporting what was trained"))
        arrays = backend.export()
        if leads():
            date = tokenizer.template_date if tokenizer.template.uses_date else ""
            serving = ServingDefaults.of(unserved_stops(data, model.path, tokenizer), date, data.template_kwargs)
            _write_result(job, arrays, serving, data.digest, done.history)
    elif done.ended == "preempted" and leads():
        job.preempted.touch()


def _write_result(
    job: TrainJob,
    arrays: dict[str, FloatArray],
    serving: ServingDefaults,
    data_digest: str,
    history: tuple[StepEvent, ...],
) -> None:
    result = {
        "identity": job.identity,
        "data_digest": data_digest,
        "adapter_digest": write_trained(job, arrays, serving),
        "history": [event.record for event in history],
    }
    write_json(job.result, result)


def make_backend(spec: ExperimentSpec) -> Backend:
    """Return the backend of the spec, importing its framework."""
    if spec.backend_name == "jax":
        from crossmesh.train.jax_backend import JaxBackend

        return JaxBackend()
    from crossmesh.train.torch_backend import TorchBackend

    return TorchBackend()
