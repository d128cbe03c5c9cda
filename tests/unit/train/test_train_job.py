"""Two assignments are the same run exactly when they compute the same thing."""

from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import (
    BackendSpec,
    BatchSpec,
    CheckpointSpec,
    DataSpec,
    HardwareSpec,
    LoraSpec,
    ModelSpec,
    OptimSpec,
    PackingSpec,
)
from crossmesh.models.weights.fetch import ModelFolder
from crossmesh.train.train_job import ResumeCheckpoint, TrainJob, checkpoint_target

SPEC = ExperimentSpec()


def assigned(spec: ExperimentSpec, *, order: str = "", files: tuple[str, str] = ("t", "c")) -> TrainJob:
    return TrainJob(spec, ModelFolder(Path("/model"), "w", *files), Path("/runs/one"), Path("/runs/one/attempt"), order=order)


def identity(spec: ExperimentSpec) -> str:
    return assigned(spec).identity


@pytest.mark.parametrize(
    "same",
    [
        replace(SPEC, optim=OptimSpec(warmup_steps=50)),  # Both are clamped to a tenth of the 30 steps.
        replace(SPEC, data=DataSpec(source="/elsewhere/rows.jsonl")),  # The same rows have the same digest wherever they lie.
        replace(SPEC, batch=BatchSpec(micro=8)),  # What 0 stands for.
        replace(SPEC, serve=ServeSpec(port=1)),
        replace(SPEC, optim=OptimSpec(stop_at=SPEC.optim.steps)),
        replace(SPEC, checkpoint=CheckpointSpec(every_steps=3, target="gs://bucket")),
    ],
)
def test_what_is_not_computed_does_not_count(same):
    assert identity(same) == identity(SPEC)


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, optim=OptimSpec(warmup_steps=2)),
        replace(SPEC, lora=LoraSpec(seed=1)),
        replace(SPEC, batch=BatchSpec(micro=4)),
        replace(SPEC, data=DataSpec(seed=1)),
        replace(SPEC, backend=BackendSpec("jax")),
        replace(SPEC, backend=BackendSpec(remat="dots")),
        replace(SPEC, backend=BackendSpec(compile="layer")),
        replace(SPEC, backend=BackendSpec(attention="plain")),
        replace(SPEC, packing=PackingSpec("step")),
        replace(SPEC, packing=PackingSpec("stream", window=64)),
        replace(SPEC, model=ModelSpec(quantization="nf4")),
        replace(SPEC, lora=LoraSpec(rank=0)),
        replace(SPEC, hardware=HardwareSpec(cpu_devices=2)),
        replace(SPEC, optim=OptimSpec(stop_at=10)),
    ],
)
def test_what_is_computed_counts(other):
    assert identity(other) != identity(SPEC)


def test_the_state_that_a_run_begins_with_counts_unless_it_is_that_of_the_same_training():
    origins = [ResumeCheckpoint("/runs/other", 10, science, "d") for science in ("a", "b")]
    begun = [replace(assigned(SPEC), resume=origin).identity for origin in origins]
    assert len({*begun, identity(SPEC)}) == 3
    alike = [replace(assigned(SPEC), resume=replace(origin, alike=True)).identity for origin in origins]
    assert {*alike} == {identity(SPEC)}


def test_files_and_settings_count_by_what_came_of_them():
    assert assigned(SPEC, files=("re-indented", "with a comment")).identity == identity(SPEC)
    known = assigned(SPEC, order="o").identity
    stream = replace(SPEC, packing=PackingSpec("stream"))
    assert assigned(replace(SPEC, data=DataSpec(seed=1)), order="o").identity == known
    assert assigned(replace(stream, packing=PackingSpec("stream", window=64)), order="o").identity == assigned(stream, order="o").identity
    longer = replace(SPEC, packing=PackingSpec("step", length=512))
    other = replace(longer, data=DataSpec(max_length=SPEC.data.max_length + 1))
    assert assigned(longer).identity == assigned(other).identity
    assert assigned(SPEC, order="another").identity != known


def test_a_whole_model_is_of_the_files_that_it_takes_along():
    full = replace(SPEC, lora=LoraSpec(rank=0))
    assert len({assigned(full, files=files).identity for files in (("t", "c"), ("u", "c"), ("t", "d"))}) == 3


def test_each_trial_has_its_own_folder_in_the_checkpoint_target():
    folder = assigned(SPEC).run_folder
    assert checkpoint_target("", folder) == ""
    assert checkpoint_target("gs://bucket/runs/", folder) == "gs://bucket/runs/one"


def test_a_whole_model_does_not_lie_under_the_name_of_an_adapter():
    assert assigned(SPEC).trained == Path("/runs/one/adapter")
    assert assigned(replace(SPEC, lora=LoraSpec(rank=0))).trained == Path("/runs/one/model")
