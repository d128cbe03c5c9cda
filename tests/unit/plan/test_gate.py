"""What is refused before a job starts, what is let through, and what nothing is known of."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.planning import PlanSpec
from crossmesh.config.services import StorageSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.config.training import DataSpec, HardwareSpec, MeshSpec, ModelSpec
from crossmesh.errors import InputError, RejectedError
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.plan.figures import Compiled
from crossmesh.plan.gate import gate_serving, gate_training
from crossmesh.plan.model import known_architecture
from crossmesh.plan.planner import Planner
from crossmesh.plan.point import TrainingPoint
from plan_points import paper_spec

TODAY = date(2026, 6, 1)
GEMMA = ModelSpec(family="gemma4", weights="hf://google/gemma-4-31b-it", dtype="bfloat16")


class Answers:
    """A compiler that has one kept answer for every point."""

    def __init__(self, answer: Compiled) -> None:
        self._answer = answer

    def serves(self, point: TrainingPoint) -> bool:
        return point.backend == "jax"

    def find(self, point: TrainingPoint) -> Compiled | None:
        return self._answer

    def missing(self) -> str:
        return "not here"

    def compile(self, point: TrainingPoint) -> Compiled:
        raise AssertionError("a gate compiles nothing")


@pytest.fixture
def spec(tmp_path: Path) -> ExperimentSpec:
    return paper_spec(storage=StorageSpec(str(tmp_path)))


def gate(spec: ExperimentSpec, *compilers: Answers) -> Any:
    return gate_training(spec, Planner(spec.plan, TODAY, compilers))


def test_a_run_that_fits_is_let_through_and_said(spec: ExperimentSpec) -> None:
    planned = gate(spec)
    assert planned.fits
    assert "GiB a chip (modelled)" in planned.text
    assert f"{planned.usd:.2f} USD" in planned.text


def test_a_tensor_that_the_mesh_does_not_divide_is_refused_whatever_is_asked(spec: ExperimentSpec) -> None:
    wide = replace(spec, hardware=HardwareSpec("tpu_v6e_8"), mesh=MeshSpec(fsdp=1, tp=8), plan=PlanSpec(gate=False))
    with pytest.raises(RejectedError, match=r"paper does not train on hardware=tpu_v6e_8: layers\.5\.attn\.k_einsum\.w") as told:
        gate(wide)
    assert "Nearest that fits: mesh." in str(told.value)
    assert "plan.gate" not in str(told.value)


def test_memory_and_budgets_are_refused_unless_the_gate_is_off(spec: ExperimentSpec) -> None:
    poor = replace(spec, plan=PlanSpec(mean_tokens=922.0, max_usd=1.0))
    with pytest.raises(RejectedError, match=r"USD with rows of 922 tokens, more than plan\.max_usd=1\. plan\.gate=false starts it"):
        gate(poor)
    planned = gate(replace(poor, plan=replace(poor.plan, gate=False)))
    assert "It does not fit: The run costs" in planned.text


def test_a_kept_answer_of_the_compiler_counts_unless_it_is_not_wanted(spec: ExperimentSpec) -> None:
    large = Answers(Compiled("libtpu", 200e9, {"arguments": 200e9}, None, None, None, extrapolated=False))
    with pytest.raises(RejectedError, match=r"186\.3 GiB on each chip \(compiled\)"):
        gate(spec, large)
    assert gate(replace(spec, plan=replace(spec.plan, compile="never")), large).fits


def test_on_a_cpu_the_rules_alone_decide(tmp_path: Path) -> None:
    tiny = ModelSpec(family="llama", weights="random://tiny_llama@0")
    on_cpu = ExperimentSpec(model=tiny, storage=StorageSpec(str(tmp_path)), plan=PlanSpec(max_usd=1e-9))
    assert gate(on_cpu) is None
    with pytest.raises(RejectedError, match="longer than the model's"):
        gate(replace(on_cpu, data=DataSpec(max_length=1 << 20)))


def test_a_model_that_is_not_here_passes_and_one_of_another_family_does_not(spec: ExperimentSpec) -> None:
    assert gate(replace(spec, model=replace(GEMMA, weights="hf://nobody/nothing"))) is None
    with pytest.raises(InputError, match=r"model\.family='llama'"):
        gate(replace(spec, model=replace(GEMMA, family="llama")))


def test_a_model_that_was_fetched_before_is_known_by_its_source(tmp_path: Path) -> None:
    fetched = fetch_model(ModelSpec(family="llama", weights="random://tiny_llama@0"), tmp_path / "cache").path
    manifest = fetched / "crossmesh.json"
    source = "s3://bucket/a/long/path/that/two/models/share/one"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source": source}))
    assert known_architecture(ModelSpec(family="llama", weights=source), tmp_path / "cache") is not None
    assert known_architecture(ModelSpec(family="llama", weights=source.replace("one", "two")), tmp_path / "cache") is None
    assert known_architecture(ModelSpec(family="llama", weights=str(tmp_path / "nothing")), tmp_path / "cache") is None


def test_an_engine_must_hold_one_sequence_of_its_longest_length(spec: ExperimentSpec) -> None:
    serving = replace(spec, serve=ServeSpec(tp=4, max_model_len=16384), plan=PlanSpec(prompt_tokens=10**6))
    planned = gate_serving(serving, Planner(PlanSpec(), TODAY))
    assert planned is not None
    assert planned.fits
    with pytest.raises(RejectedError, match=r"paper does not serve on hardware=tpu_v5p_8: .*serve\.tp=3"):
        gate_serving(replace(serving, serve=ServeSpec(tp=3)), Planner(PlanSpec(), TODAY))
    small = replace(serving, hardware=HardwareSpec("tpu_v6e_8"), mesh=MeshSpec(), serve=ServeSpec(tp=1))
    with pytest.raises(RejectedError, match=r"weights.*plan\.gate=false"):
        gate_serving(small, Planner(PlanSpec(), TODAY))
