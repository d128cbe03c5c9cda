"""`jobs/evaluate.py` as a user runs it against an endpoint: results, tracking, going on, and comparing with an earlier evaluation."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from openai_endpoint import KEY, Endpoint
from verilog_eval_files import GATE, GATE_PORTS, REGISTER, REGISTER_PORTS, write_dataset

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
]


class Place:
    """A storage root, a folder of problems and an endpoint."""

    def __init__(self, folder, checkout, endpoint) -> None:
        self.folder, self.checkout, self.endpoint, self.storage = folder, checkout, endpoint, folder / "storage"
        self.problems = write_dataset(folder / "verilog-eval" / "dataset_spec-to-rtl").parent

    def run(self, *overrides: str) -> tuple[dict, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONPATH")}
        environment |= {"CROSSMESH_STORAGE": str(self.storage), "OPENAI_API_KEY": KEY}
        job = str(self.checkout / "jobs" / "evaluate.py")
        asked = ["eval=verilog_eval", f"eval.path={self.problems}", f"eval.url={self.endpoint.url}", "output=json", *overrides]
        done = subprocess.run([sys.executable, job, *asked], capture_output=True, text=True, env=environment, cwd=self.folder, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory, checkout):
    endpoint = Endpoint()
    endpoint.start()
    endpoint.answers = {
        "Implement Prob001_gate.": f"```verilog\nmodule TopModule {GATE_PORTS}{GATE}endmodule\n```",
        "Implement Prob002_register.": f"```verilog\nmodule TopModule {REGISTER_PORTS}{REGISTER.replace('^', '&')}endmodule\n```",
    }
    yield Place(tmp_path_factory.mktemp("evaluate"), checkout, endpoint)
    endpoint.stop()


def test_an_endpoint_is_evaluated_tracked_and_compared(place):
    first, said = place.run()
    assert "generate 10/10" in said
    model = first["models"]["base"]
    split = model["splits"]["spec_to_rtl"]
    # Of two problems one is always solved; the third cannot be judged here and is asked of nobody.
    assert (split["problems"], split["samples"], split["passed"], first["excluded"]) == (2, 10, 5, ["Prob003_broken"])
    assert (split["pass_at_k"]["1"]["value"], split["pass_at_k"]["5"]["value"]) == (0.5, 0.5)
    assert split["reasons"] == {"passed": 5, "mismatch": 5}
    assert len({request["seed"] for request in place.endpoint.requests}) == 10
    assert {(request["temperature"], request["top_p"]) for request in place.endpoint.requests} == {(0.8, 0.95)}
    # What MLflow has.
    client = MlflowClient(f"sqlite:///{place.storage / 'mlflow.db'}")
    run = client.get_run(model["run_id"])
    assert (run.info.status, run.data.tags["crossmesh.kind"]) == ("FINISHED", "evaluate")
    assert run.data.metrics["eval/spec_to_rtl/pass_at_5"] == 0.5
    assert {file.path for file in client.list_artifacts(model["run_id"], "samples")} == {"samples/judged.jsonl"}

    # Again: nothing is asked. After another answer, with force: all is, and the two are compared problem by problem.
    place.endpoint.requests.clear()
    again, _ = place.run()
    assert again["models"]["base"]["already_done"]
    assert place.endpoint.requests == []
    place.endpoint.answers["Implement Prob002_register."] = f"module TopModule {REGISTER_PORTS}{REGISTER}endmodule"
    forced, _ = place.run("force=true", f"against={model['run_id'][:12]}")
    assert len(place.endpoint.requests) == 10
    at_1, at_5 = forced["comparisons"]
    assert (at_1["k"], at_1["comparable"], at_1["differing"]) == (1, True, [])
    assert (at_1["difference"], at_1["better"], at_1["worse"], at_1["problems"]) == (0.5, 1, 0, 2)
    assert (at_5["test"], at_5["p_value"], at_5["shown"]) == ("exact McNemar", 1.0, False)

    # Other sampling is said to be so.
    other, _ = place.run("eval.temperature=0.2", f"against={model['run_id']}")
    assert {one["comparable"] for one in other["comparisons"]} == {False}
    assert other["comparisons"][0]["differing"] == ["sampling.temperature"]


class Other(ThreadingHTTPServer):
    """Another server on a port that a job is told to serve on: it would share it, as Ray Serve's proxy does, and remembers who asks."""

    allow_reuse_port = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = json.dumps({"object": "list", "data": [{"id": "base", "object": "model"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


def test_a_job_of_its_own_server_never_asks_the_one_on_the_port(tmp_path, checkout):
    other = Other()
    taken = other.server_address[1]
    storage = tmp_path / "storage"
    asked = ["data.rtl.train_rows=8", "data.rtl.heldout_rows=3", "data.rtl.hard_rows=1", "eval.max_tokens=8", "serve.max_model_len=1024"]
    command = [sys.executable, str(checkout / "jobs" / "evaluate.py"), "model=tiny_llama", *asked, f"serve.port={taken}", "output=json"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "RAY_"))}
    environment |= {"CROSSMESH_STORAGE": str(storage), "VLLM_CPU_KVCACHE_SPACE": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=580)
    finally:
        other.shutdown()
        other.server_close()
    assert done.returncode == 0, done.stderr
    assert other.asked == []
    base = json.loads(done.stdout.splitlines()[-1])["models"]["base"]
    assert {split: one["samples"] for split, one in base["splits"].items()} == {"heldout": 3, "hard": 1}
    client = MlflowClient(f"sqlite:///{storage / 'mlflow.db'}")
    record = json.loads(Path(client.download_artifacts(base["run_id"], "records/evaluation.json", str(tmp_path))).read_text())
    assert "unknown" not in record["engine"]  # Its own server, which says what it is.
