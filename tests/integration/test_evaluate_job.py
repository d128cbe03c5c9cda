"""`jobs/evaluate.py` as a user runs it against an endpoint: results, tracking, going on, and comparing with an earlier evaluation."""

import json
import os
import subprocess
import sys

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
