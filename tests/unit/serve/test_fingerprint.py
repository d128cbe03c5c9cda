"""The digest of a fingerprint changes with what is served, and with nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.config.experiment import ExperimentSpec
from crossmesh.config.serving import ServeSpec
from crossmesh.evaluate.examined import engine_of, surroundings_of
from crossmesh.files import write_json
from crossmesh.models.weights.fetch import MANIFEST
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.serve.adapters import ServedAdapter, ServedBase
from crossmesh.serve.fingerprint import EngineFacts, fingerprint
from crossmesh.serve.record import engine_record, server_record
from crossmesh.serve.vllm.options import service_limits
from crossmesh.serve.vllm.settings import EngineSettings, engine_settings

LIMITS: tuple[dict[str, object], ...] = (
    {"replicas": 2},
    {"max_replicas": 2},
    {"max_replicas": 2, "target_ongoing_requests": 4.0},
    {"max_replicas": 2, "scale_down_s": 20.0},
    {"max_queue": 1},
    {"request_timeout_s": 1.0},
)
FACTS = EngineFacts("float32", "float32", 1, 1, 2048, True, True, 16, "cpu")


@pytest.fixture
def base(tmp_path: Path) -> ServedBase:
    write_json(tmp_path / "model" / "config.json", architecture_config("tiny_llama"))
    write_json(tmp_path / "form" / MANIFEST, {"adapter": "ad", "digest": "of the form"})
    return ServedBase("base", tmp_path / "model", "we1ghts", tmp_path / "forms")


def settings(base: ServedBase, **serve: object) -> EngineSettings:
    return engine_settings(ExperimentSpec(serve=ServeSpec(**serve)), base)


def test_it_names_weights_and_adapters_by_digest_and_travels_as_json(base: ServedBase, tmp_path: Path) -> None:
    found = json.loads(json.dumps(fingerprint(settings(base), base, {"one": str(tmp_path / "form")}, FACTS)))
    assert found["model"] == {"name": "base", "weights": "we1ghts"}
    assert found["adapters"] == {"one": "ad"}
    assert found["engine"]["engine"] == "vllm-cpu"
    assert found["engine"]["arguments"]["max_model_len"] == 512
    assert (found["dtype"], found["kv_cache_dtype"], found["tensor_parallel"]) == ("float32", "float32", 1)
    assert found["hardware"]["chip"] == "cpu"
    assert "vllm-cpu" in found["libraries"]


def test_its_digest_is_of_what_is_served(base: ServedBase, tmp_path: Path) -> None:
    plain = fingerprint(settings(base), base, {}, FACTS)["sha256"]
    assert fingerprint(settings(base, port=9000), base, {}, FACTS)["sha256"] == plain
    others = [
        fingerprint(settings(base), base, {"one": str(tmp_path / "form")}, FACTS),
        fingerprint(settings(base), replace(base, weights_digest="other"), {}, FACTS),
        fingerprint(settings(base, max_num_seqs=8), base, {}, FACTS),
        *(fingerprint(settings(base, **limit), base, {}, FACTS) for limit in LIMITS),
        fingerprint(settings(base), base, {}, replace(FACTS, kv_cache_dtype="fp8_e5m2")),
    ]
    assert len({plain, *(other["sha256"] for other in others)}) == 5 + len(LIMITS)


def test_limits_are_part_of_a_server_and_not_of_how_it_answers(base: ServedBase) -> None:
    plain = fingerprint(settings(base), base, {}, FACTS)
    assert plain["limits"] == service_limits(ServeSpec())
    for limit in LIMITS:
        other = fingerprint(settings(base, **limit), base, {}, FACTS)
        assert engine_of(other) == engine_of(plain)
        assert surroundings_of(other)["limits"] != surroundings_of(plain)["limits"]
        assert engine_record(settings(base, **limit)) == engine_record(settings(base))
        assert server_record(settings(base, **limit)) != server_record(settings(base))


def test_records_keep_the_name_that_the_worker_had_when_they_began(base: ServedBase) -> None:
    """Else an engine would differ from itself as soon as its code moved."""
    served = engine_settings(ExperimentSpec(), base, (ServedAdapter("a", Path("/forms/a"), 8),))
    assert engine_record(served)["arguments"]["worker_cls"] == "crossmesh.serve.lora_cpu_vllm.Worker"
    assert served.engine_kwargs["worker_cls"] == "crossmesh.serve.vllm.lora_cpu_vllm.Worker"
