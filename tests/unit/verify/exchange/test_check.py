"""What the exchange check calls equal, worse and proven."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossmesh.adapters.initial import initial_lora
from crossmesh.adapters.peft_config import AdapterConfig
from crossmesh.adapters.peft_format import open_adapter, store_adapter
from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.training import LoraSpec
from crossmesh.console import Console
from crossmesh.errors import InputError
from crossmesh.models.families.registry import families, parse_architecture
from crossmesh.models.lora import lora_modules
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.track.tracked_run import registered_name
from crossmesh.verify.exchange.check import ExchangeSubject, _of_all, judge_exchange, tiny_models, verify_exchange
from crossmesh.verify.exchange.figures import agreement, greedy_gap, log_softmax, logprob_difference, module_errors, worst_of
from crossmesh.verify.result import Limit

VOCAB, PROBE = 11, 6


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, PROBE, VOCAB)).astype(np.float32)


def test_agreement_is_of_the_worst_position(logits: np.ndarray) -> None:
    same = agreement(logits, logits)
    assert (same.max_abs, same.kl, same.top1) == (0.0, 0.0, 1.0)
    shifted = logits.copy()
    shifted[1, 3] += 5.0  # All logits of a position alike: no probability changes.
    assert agreement(shifted, logits).kl == pytest.approx(0.0, abs=1e-6)
    other = logits.copy()
    other[0, 2, logits[0, 2].argmin()] = logits[0, 2].max() + 3
    found = agreement(other, logits)
    p, q = np.exp(log_softmax(logits[0, 2])), np.exp(log_softmax(other[0, 2]))
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum()))
    assert found.top1 == 11 / 12
    assert found.relative == pytest.approx(found.max_abs / logits.std())


def test_a_token_gap_counts_the_tie_and_nothing_after_it(logits: np.ndarray) -> None:
    tokens = np.zeros((2, PROBE), np.int32)
    tokens[:, 3:] = logits[:, 2:-1].argmax(-1)
    assert greedy_gap(logits, tokens, 3) == 0.0
    second = np.argsort(logits[1, 3])[-2]
    tokens[1, 4] = second
    assert greedy_gap(logits, tokens, 3) == pytest.approx(float(logits[1, 3].max() - logits[1, 3, second]))
    assert greedy_gap(logits, tokens, 5) == 0.0


def test_log_probabilities_are_held_against_the_place_before(logits: np.ndarray) -> None:
    ids = np.argsort(-logits[:, :-1], -1)[..., :4].astype(np.int32)
    values = np.take_along_axis(log_softmax(logits[:, :-1]), ids.astype(np.int64), -1).astype(np.float32)
    assert logprob_difference(ids, values, logits) < 1e-6
    values[1, 4, 3] -= 0.25
    assert logprob_difference(ids, values, logits) == pytest.approx(0.25, abs=1e-5)


def test_the_worst_array_of_a_round_trip_is_named() -> None:
    one = {("a", 0): np.ones((2, 2), np.float32), ("b", 1): np.ones(3, np.float32)}
    assert worst_of(module_errors(one, one)) == ("a.0", 0.0)
    off = {**one, ("b", 1): np.array([1, 1, 1.5], np.float32)}
    assert worst_of(module_errors(one, off)) == ("b.1", pytest.approx(0.5 / np.sqrt(3)))
    assert worst_of(module_errors(one, {("a", 0): one["a", 0]}))[1] == float("inf")


def test_every_family_has_a_tiny_model() -> None:
    assert {model.family for model in tiny_models().values()} == set(families())


@pytest.fixture
def subject(tmp_path: Path, logits: np.ndarray) -> ExchangeSubject:
    """Engines that agree to the last bit, on an adapter that moves every token."""
    architecture = parse_architecture(architecture_config("tiny_gemma4"), "tiny_gemma4")
    modules = lora_modules(LoraSpec(rank=2), architecture)
    store_adapter(tmp_path / "adapter", initial_lora(modules, 0), AdapterConfig.of(modules, 0.0, ""), "")
    adapted = logits[..., ::-1].copy()
    for name, array in {"torch_base": logits, "jax_base": logits, "torch_adapted": adapted, "jax_adapted": adapted}.items():
        np.save(tmp_path / f"{name}.npy", array)
    np.save(tmp_path / "torch_merged.npy", adapted)
    tokens = np.zeros((2, PROBE + 32), np.int32)
    for form, values in {"base": logits, "served": adapted, "plain": logits}.items():
        ids = np.broadcast_to(np.arange(VOCAB, dtype=np.int32), (2, PROBE - 1, VOCAB))
        np.save(tmp_path / f"vllm_{form}.npy", tokens + (form == "served"))
        np.save(tmp_path / f"vllm_{form}_ids.npy", ids)
        np.save(tmp_path / f"vllm_{form}_values.npy", log_softmax(values[:, :-1]).astype(np.float32))
    return ExchangeSubject(
        name="one",
        model=tmp_path,
        architecture=architecture,
        adapter=open_adapter(tmp_path / "adapter"),
        files=tmp_path,
        digests={"base": "b", "adapter": "a", "result": "r", "serving": "s"},
        random=True,
        exact=True,
        shared=True,
    )


def answers(**changes: object) -> dict[str, dict[str, object]]:
    gaps = {"base": 0.0, "served": 0.0, "plain": 1.5}
    return {"torch": {"gaps": gaps}, "jax": {"round_trip": 0.0, "worst_array": "x"}, "vllm": {"log_probabilities": VOCAB}} | changes


def verdicts(subject: ExchangeSubject, **changes: object) -> dict[str, bool]:
    return {limit.name: limit.passed for limit in judge_exchange(subject, answers(**changes), "float32")[0]}


def test_engines_that_agree_pass_every_bound(subject: ExchangeSubject) -> None:
    found = verdicts(subject)
    assert all(found.values()), found
    assert {"round_trip", "jax_logits", "merged_logits", "served_tokens", "plain_form_still_wrong", "effect_kl"} <= found.keys()


def test_an_adapter_without_effect_fails(subject: ExchangeSubject) -> None:
    np.save(subject.files / "torch_adapted.npy", subject.array("torch_base"))
    np.save(subject.files / "vllm_served.npy", subject.array("vllm_base"))
    found = verdicts(subject)
    assert not found["effect_kl"]
    assert not found["served_tokens_changed_by_adapter"]


def test_a_plain_form_that_is_served_right_says_that_the_copy_must_go(subject: ExchangeSubject) -> None:
    mended = {"gaps": {"base": 0.0, "served": 0.0, "plain": 0.0}}
    limits, figures = judge_exchange(subject, answers(torch=mended), "float32")
    assert [limit.name for limit in limits if not limit.passed] == ["plain_form_still_wrong"]
    assert "Remove serving_form" in figures["vllm"]["serving_form"]
    # A user's adapter may be too small to show it.
    limits, _ = judge_exchange(replace(subject, random=False), answers(torch=mended), "float32")
    assert all(limit.passed for limit in limits)


def test_an_engine_that_fails_fails_the_check_and_one_that_refuses_is_reported(subject: ExchangeSubject) -> None:
    found = verdicts(subject, vllm={"failed": "it crashed"})
    assert not found["failed_engines"]
    limits, figures = judge_exchange(subject, answers(jax={"refused": "has experts"}), "float32")
    assert all(limit.passed for limit in limits)
    assert figures["refused"] == {"jax": "has experts"}
    assert not verdicts(subject, torch={"failed": "it crashed"})["reference"]


def test_of_many_models_the_worst_is_shown_with_its_name() -> None:
    low, high, none = ([Limit("gap", value, 0.5), Limit("top1", 1 - value, 0.9, at_least=True)] for value in (0.1, 0.3, float("nan")))
    result = _of_all({"a": (low, {}), "b": (high, {})})
    assert result.worst == {"gap": 0.3, "top1": 0.7}
    assert result.figures["worst_model"] == {"gap": "b", "top1": "b"}
    assert not _of_all({"a": (low, {}), "b": (none, {})}).passed


def test_full_fine_tuning_has_no_adapter_to_exchange(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"lora\.rank=0 .*about adapters"):
        verify_exchange(ExperimentSpec(lora=LoraSpec(rank=0)), tmp_path, Console())


def test_names_of_registered_models_have_no_slash_or_colon() -> None:
    assert registered_name("hf://google/gemma-4-31b@main") == "hf-google-gemma-4-31b-main-lora"
