"""The load generator's protocol, with a process in its place that answers what it was asked."""

import sys
from pathlib import Path

import pytest

from crossmesh.bench.cells import Prompts
from crossmesh.bench.load import LoadGenerator, Target
from crossmesh.errors import CrossmeshError
from crossmesh.plan.serving.batching import LoadRequest

STAND_IN = """#!{python}
import json, os, sys
print(json.dumps({{"ready": True}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    path = asked["arguments"][asked["arguments"].index("--dataset-path") + 1]
    load = [json.loads(one) for one in open(path)]
    if load[0]["input_length"] == 13:
        print("what went wrong", file=sys.stderr, flush=True)
        sys.exit(7)
    print(json.dumps({{"progress": [1, len(load)]}}), flush=True)
    seen = {{"pid": os.getpid(), "argv": sys.argv[1:], "seed": os.environ["PYTHONHASHSEED"], "load": load, **asked}}
    print(json.dumps({{"error": "ValueError: no"}} if load[0]["input_length"] == 14 else {{"result": seen}}), flush=True)
"""
TARGET = Target("http://here", "base", "the-secret-key")


@pytest.fixture
def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadGenerator:
    script = tmp_path / "python"
    script.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o700)
    monkeypatch.setenv("CROSSMESH_PYTHON_BENCH_VLLM", str(script))
    return LoadGenerator(tmp_path / "tokenizer", tmp_path / "bench")


def test_one_process_sends_every_load_with_exact_lengths_and_no_key_in_sight(generator: LoadGenerator) -> None:
    received: list[tuple[int, int]] = []
    with generator as running:
        requests = [LoadRequest(0.0, 7, 3), LoadRequest(1.5, 9, 1)]
        first = running.send(TARGET, requests, Prompts(((11,), (11, 12)), 6), 0, lambda *progress: received.append(progress))
        second = running.send(TARGET, [LoadRequest(0.0, 5, 2)], Prompts(((13,),)), 4, lambda *progress: received.append(progress))
    assert first["pid"] == second["pid"]
    assert received == [(1, 2), (1, 1)]
    assert first["argv"] == ["-m", "crossmesh.bench.load_vllm"]
    assert first["key"] == "the-secret-key"
    assert "the-secret-key" not in str(first["arguments"])
    assert first["seed"] == "0"
    assert first["load"] == [
        {"timestamp": 0.0, "input_length": 7, "output_length": 3, "hash_ids": [11]},
        {"timestamp": 1.5, "input_length": 9, "output_length": 1, "hash_ids": [11, 12]},
    ]
    sizes = [one["arguments"][one["arguments"].index("--timed-trace-chunk-hash-size") + 1] for one in (first, second)]
    assert sizes == ["6", str(1 << 30)]  # Blocks of a hashed trace; otherwise an id is a whole prompt.
    assert "--max-concurrency" not in first["arguments"]
    assert second["arguments"][-2:] == ["--max-concurrency", "4"]
    assert "the-secret-key" not in repr(TARGET)


@pytest.mark.parametrize(
    ("prompt", "said"), [(14, "The load generator failed: ValueError: no"), (13, r"ended with code 7:\nwhat went wrong\nAll of it is in")]
)
def test_a_generator_that_fails_or_dies_says_why(generator: LoadGenerator, prompt: int, said: str) -> None:
    with generator as running, pytest.raises(CrossmeshError, match=said):
        running.send(TARGET, [LoadRequest(0.0, prompt, 1)], Prompts(((1,),)), 0, lambda *_: None)
