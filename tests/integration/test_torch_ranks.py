"""The torch backend on several ranks (gloo, CPU) against one process that computes the whole batch at once."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torch_ranks
from crossmesh.models.weights.fetch import fetch_model
from crossmesh.verify.exchange.check import tiny_models
from torch_ranks import Case, read_result, write_cases

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def models(where: Path) -> dict[str, str]:
    """Folders of the tiny models by name."""
    return {name.removeprefix("tiny_"): str(fetch_model(model, where).path) for name, model in tiny_models().items()}


def alone(where: Path, *cases: Case) -> None:
    """Run cases in this process."""
    write_cases(where, list(cases))
    for case in cases:
        torch_ranks.run(case, where)


def together(where: Path, *cases: Case) -> None:
    """Run cases one after another in as many processes as their mesh has places."""
    job = write_cases(where, list(cases))
    folders = [str(Path(torch_ranks.__file__).parent), *sys.path]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    ranks = [
        subprocess.Popen([sys.executable, torch_ranks.__file__, str(job), str(rank)], env=environment)
        for rank in range(cases[0].shape.devices)
    ]
    try:
        assert [process.wait(timeout=300) for process in ranks] == [0] * len(ranks)
    finally:
        for process in ranks:
            process.kill()


def check_same(where: Path, name: str, reference: str, start: int = 0) -> None:
    """Losses to 1e-5, relative as on JAX, and the trained arrays to 1e-3 (relative Frobenius), from step `start` on."""
    (ours, arrays), (theirs, expected) = read_result(where, name), read_result(where, reference)
    assert ours.losses == pytest.approx(theirs.losses[start:], rel=1e-5)
    assert ours.norms == pytest.approx(theirs.norms[start:], rel=1e-4)
    assert ours.agreed == [True, False]
    assert arrays.keys() == expected.keys()
    square = sum(float(((arrays[key] - expected[key]) ** 2).sum()) for key in expected)
    assert np.sqrt(square / sum(float((value**2).sum()) for value in expected.values())) < 1e-3


@pytest.fixture(scope="module")
def two(where: Path, models: dict[str, str]) -> Path:
    """Results on one process and on two, with dropout; the LoRA rank of 3 divides by no axis."""
    gemma, llama = models["gemma4"], models["llama"]
    alone(
        where,
        Case("gemma4", gemma, micro=4, steps=12, save_after=6, dropout=0.3),
        Case("llama", llama, micro=4, steps=12, dropout=0.3),
        Case("bfloat16", gemma, steps=2, dtype="bfloat16", micro=2),
    )
    together(
        where,
        Case("gemma4-fsdp", gemma, {"fsdp": 2}, steps=12, remat="dots", save_after=6, dropout=0.3),
        Case("gemma4-tp", gemma, {"tp": 2}, steps=12, remat="layer", dropout=0.3),
        Case("llama-data", llama, {"data": 2}, steps=12, dropout=0.3),
        Case("bfloat16-fsdp", gemma, {"fsdp": 2}, steps=2, dtype="bfloat16", micro=2),
        Case("one-to-two", gemma, {"fsdp": 2}, steps=12, load="gemma4", dropout=0.3),
    )
    return where


@pytest.mark.parametrize("name", ["gemma4-fsdp", "gemma4-tp", "llama-data"])
def test_any_split_of_the_global_batch_trains_the_same(two: Path, name: str) -> None:
    check_same(two, name, name.partition("-")[0])


def test_a_bfloat16_base_and_float32_lora_are_gathered_together(two: Path) -> None:
    (ours, arrays), (theirs, expected) = read_result(two, "bfloat16-fsdp"), read_result(two, "bfloat16")
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-2)
    assert ours.norms == pytest.approx(theirs.norms, rel=2e-2)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    assert all(np.abs(arrays[name] - expected[name]).max() < 3e-3 for name in expected)


def test_all_ranks_report_the_same(two: Path) -> None:
    assert read_result(two, "gemma4-fsdp", 0)[0] == read_result(two, "gemma4-fsdp", 1)[0]


def test_state_of_one_process_continues_on_two(two: Path) -> None:
    check_same(two, "one-to-two", "gemma4", start=6)


def test_state_of_two_processes_continues_on_one(two: Path, models: dict[str, str]) -> None:
    assert len(list((two / "gemma4-fsdp").iterdir())) == 2  # each wrote its own
    alone(two, Case("two-to-one", models["gemma4"], micro=2, steps=12, load="gemma4-fsdp", dropout=0.3))
    check_same(two, "two-to-one", "gemma4", start=6)


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gemma4"])
def test_twenty_steps_are_the_same_on_every_axis(where: Path, models: dict[str, str], family: str) -> None:
    axes = ("data", "fsdp", "tp")
    alone(where, Case(f"{family}-20", models[family], micro=4))
    together(where, *(Case(f"{family}-20-{axis}", models[family], {axis: 2}) for axis in axes))
    for axis in axes:
        check_same(where, f"{family}-20-{axis}", f"{family}-20")


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(name.removeprefix("tiny_") for name in tiny_models() if name not in ("tiny_llama", "tiny_gemma4")))
def test_every_family_trains_the_same_on_every_axis(where: Path, models: dict[str, str], name: str) -> None:
    folder = models[name]
    axes = ("fsdp",) if name.endswith("_moe") else ("fsdp", "tp")  # Torch does not split experts over tp.
    lora, full = Case(name, folder, steps=6, remat="layer"), Case(f"{name}-full", folder, rank=0, steps=4, learning_rate=1e-4)
    alone(where, *(replace(case, micro=4) for case in (lora, full)))
    cases = [replace(case, name=f"{case.name}-{axis}", mesh={axis: 2}) for case in (lora, full) for axis in axes]
    together(where, *cases)
    for case in cases:
        check_same(where, case.name, case.name.rpartition("-")[0])


@pytest.mark.full
def test_more_meshes_train_the_same(where: Path, models: dict[str, str]) -> None:
    """Two axes at once, full fine-tuning, and slices with a LoRA rank of 1, which leaves ranks without a part."""
    family = "gemma4"
    folder = models[family]
    two_axes = Case(f"{family}-two-axes", folder, {"fsdp": 2, "tp": 2}, steps=12, save_after=6)
    full = Case(f"{family}-full", folder, {"fsdp": 2, "tp": 2}, rank=0, steps=8, learning_rate=1e-4, save_after=4)
    thin = Case(f"{family}-thin", folder, {"dcn": 2, "fsdp": 2}, rank=1, steps=8, save_after=4)
    alone(where, *(replace(case, name=f"{case.name}-alone", mesh={}, micro=4) for case in (two_axes, full, thin)))
    together(where, two_axes, full, thin)
    for case in (two_axes, full, thin):
        check_same(where, case.name, f"{case.name}-alone")
    for case in (two_axes, full, thin):
        alone(where, replace(case, name=f"{case.name}-back", mesh={}, micro=4, save_after=0, load=case.name))
        check_same(where, f"{case.name}-back", f"{case.name}-alone", start=case.save_after)
