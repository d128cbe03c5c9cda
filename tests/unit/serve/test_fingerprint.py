"""The digest of a fingerprint changes with what is served, and with nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.files import write_json
from crossmesh.models.random_weights import architecture_config
from crossmesh.models.weights import MANIFEST
from crossmesh.serve.adapters import ServedBase
from crossmesh.serve.engine import EngineSettings, engine_settings
from crossmesh.serve.fingerprint import EngineFacts, fingerprint
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.spec.serving import ServeSpec

FACTS = EngineFacts("float32", "float32", 1, 1, 2048, True, True, 16, "cpu")


@pytest.fixture
def base(tmp_path: Path) -> ServedBase:
    write_json(tmp_path / "model" / "config.json", architecture_config("tiny_llama"))
    write_json(tmp_path / "form" / MANIFEST, {"adapter": "ad", "digest": "of the form"})
    return ServedBase("base", tmp_path / "model", "we1ghts", tmp_path / "forms")


def settings(base: ServedBase, **serve: object) -> EngineSettings:
    return engine_settings(ExperimentSpec(serve=ServeSpec(**serve)), base)  # type: ignore[arg-type]


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
        fingerprint(settings(base), base, {}, replace(FACTS, kv_cache_dtype="fp8_e5m2")),
    ]
    assert len({plain, *(other["sha256"] for other in others)}) == 5
