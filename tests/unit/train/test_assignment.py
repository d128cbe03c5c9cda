"""Two assignments are the same run exactly when they compute the same thing."""

from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.models.weights import ModelFolder
from crossmesh.spec.experiment import BackendSpec, BatchSpec, DataSpec, ExperimentSpec, LoraSpec, OptimSpec, ServeSpec
from crossmesh.train.assignment import Assignment

SPEC = ExperimentSpec()


def identity(spec: ExperimentSpec) -> str:
    return Assignment(spec, ModelFolder(Path("/model"), "w", "t", "c"), Path("/run"), Path("/run/attempt")).identity


@pytest.mark.parametrize(
    "same",
    [
        replace(SPEC, optim=OptimSpec(warmup_steps=50)),  # Both are clamped to a tenth of the 30 steps.
        replace(SPEC, data=DataSpec(source="/elsewhere/rows.jsonl")),  # The same rows have the same digest wherever they lie.
        replace(SPEC, batch=BatchSpec(micro=8)),  # What 0 stands for.
        replace(SPEC, serve=ServeSpec(port=1)),
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
    ],
)
def test_what_is_computed_counts(other):
    assert identity(other) != identity(SPEC)
