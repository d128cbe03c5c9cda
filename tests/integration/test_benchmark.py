"""jobs/benchmark.py as a user runs it: a recorded trace on a server of its own, with goodput, files and an MLflow run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.track.trackers import open_tracker

pytestmark = [pytest.mark.integration, pytest.mark.full]

LENGTHS = [(40, 8), (64, 12), (17, 1), (120, 16)] * 6
RUN = """
import runpy, sys
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    loaded = [name for name in ("jax", "torch", "transformers", "vllm", "ray.serve.llm") if name in sys.modules]
    print("loaded", loaded, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("benchmark") / "storage"


@pytest.fixture(scope="module")
def ran(checkout: Path, storage: Path, clean_environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    storage.mkdir()
    trace = storage / "trace.csv"
    lines = [f"{index * 0.2},{prompt},{output}" for index, (prompt, output) in enumerate(LENGTHS)]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n", encoding="utf-8")
    arguments = [
        "model=tiny_llama",
        "serve.port=0",
        "serve.max_model_len=256",
        "serve.kv_cache_gib=0.25",
        "bench=trace",
        f"bench.trace={trace}",
        "bench.slo_ttft_ms=60000",
        "bench.slo_tpot_ms=0",
        f"storage.root={storage}",
        "output=json",
    ]
    code = f"import sys; sys.argv[:1] = []; sys.argv[0] = {str(checkout / 'jobs' / 'benchmark.py')!r}\n{RUN}"
    return subprocess.run(
        [sys.executable, "-c", code, "-", *arguments], capture_output=True, text=True, timeout=300, check=False, env=clean_environment
    )


@pytest.fixture(scope="module")
def said(ran: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    values: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return values


def test_every_request_of_the_trace_is_answered_as_long_as_it_was(said: dict[str, Any]) -> None:
    (cell,) = said["cells"]
    assert cell["name"] == "trace"
    assert {flag["kind"] for flag in cell["flags"]} <= {"client"}  # Two cores may make the client late; nothing else is wrong.
    figures = {name: value["mean"] for name, value in cell["figures"].items()}
    assert (figures["requests"], figures["failed"], figures["goodput_share"]) == (24, 0, 1.0)
    assert figures["output_tokens_per_s"] == pytest.approx(sum(output for _, output in LENGTHS) / figures["duration_s"])
    assert cell["cache_reset"]
    assert figures["cached_share"] == 0
    rows = pq.read_table(Path(said["folder"]) / "result" / "requests.parquet").to_pylist()
    assert [(row["prompt"], row["output"]) for row in rows] == LENGTHS
    assert [row["arrival_s"] for row in rows] == pytest.approx([0.2 * index for index in range(24)])


def test_our_figures_are_those_of_vllm(said: dict[str, Any]) -> None:
    (kept,) = (json.loads(file.read_text()) for file in Path(said["folder"]).glob("cells/*/0.json"))
    figures = said["cells"][0]["figures"]
    assert kept["said"]["request_throughput"] == pytest.approx(figures["requests_per_s"]["mean"])
    assert kept["said"]["output_throughput"] == pytest.approx(figures["output_tokens_per_s"]["mean"])


def test_the_server_said_what_it_was_and_the_run_is_tracked(said: dict[str, Any], storage: Path) -> None:
    assert said["server"]["model"]["name"] == "base"
    assert said["server"]["engine"]["engine"] == "vllm-cpu"
    tracker = open_tracker(TrackingSpec(), StorageSpec(str(storage)))
    run = tracker.run(said["run_id"])
    assert run.status == "FINISHED"
    flagged = "" if said["cells"][0]["comparable"] else "flagged/"
    assert run.metrics[f"{flagged}trace/ttft_p50_s"] == said["cells"][0]["figures"]["ttft_p50_s"]["mean"]
    assert tracker.read_json(said["run_id"], "benchmark/benchmark.json")["cells"] == said["cells"]


def test_the_driver_imports_no_framework(ran: "subprocess.CompletedProcess[str]") -> None:
    assert "loaded []" in ran.stderr
