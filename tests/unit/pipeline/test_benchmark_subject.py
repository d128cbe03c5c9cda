"""What makes a server that is measured this one and no other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crossmesh.pipeline.benchmark_subject import OwnServer
from crossmesh.serve.vllm.settings import EngineSettings


def described(kind: str) -> dict[str, Any]:
    settings = EngineSettings(kind, {"engine_kwargs": {}}, {}, {}, {}, "cpu", 1)
    spec, base = SimpleNamespace(hardware=SimpleNamespace(name="cpu")), SimpleNamespace(weights_digest="abc", folder=Path("/model"))
    return OwnServer(cast("Any", spec), cast("Any", base), (), (), settings).described


def test_measurements_with_other_threads_are_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = described("serve/vllm-cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert (one["threads"], described("serve/vllm-cpu")) == ("1", {**one, "threads": "2"})
    assert "threads" not in described("serve/vllm-gpu")
