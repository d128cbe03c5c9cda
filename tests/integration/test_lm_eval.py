"""lm-evaluation-harness itself against an endpoint, in the environment of `make harness`."""

import json
from collections import Counter

import pytest

from crossmesh.evaluate.lm_eval import evaluate_harness
from crossmesh.spec.evaluation import EvalSpec
from openai_endpoint import KEY, Endpoint

pytestmark = [pytest.mark.integration, pytest.mark.full]

TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "What is {{a}} + {{b}}?"
doc_to_target: "{{a + b}}"
generation_kwargs: {until: ["\\n\\n"]}
filter_list:
  - name: number
    filter:
      - {function: regex, regex_pattern: "(-?[0-9]+)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""


@pytest.fixture
def endpoint():
    server = Endpoint()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def tasks(tmp_path):
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = folder / "sums.jsonl"
    data.write_text("".join(json.dumps({"a": a, "b": 2 * a}) + "\n" for a in range(6)))
    (folder / "sums.yaml").write_text(TASK.replace("DATA", str(data)))
    return folder


def test_a_task_of_its_own_is_asked_once_and_scored(endpoint, tasks, tmp_path):
    endpoint.answers = {f"What is {a} + {2 * a}?": f"It is {3 * a if a % 3 else 7}." for a in range(6)}
    spec = EvalSpec(task="lm_eval", tasks=("sums",), path=str(tasks), max_tokens=24, concurrency=3)
    seen = []
    result = evaluate_harness(endpoint.url, KEY, "base", spec, tmp_path / "out", lambda *progress: seen.append(progress))
    (split,) = result.splits
    assert (split.split, split.passed, split.problems) == ("sums exact_match,number", 4, 6)
    assert split.counts == {str(a): (1, int(a % 3 > 0)) for a in range(6)}
    assert result.metrics["sums/exact_match,number"] == pytest.approx(4 / 6)
    assert seen[-1] == ("generate", 6, 6)
    asked = Counter((request["max_tokens"], request["temperature"], request["top_p"]) for request in endpoint.requests)
    assert asked == {(24, 0.0, 1.0): 6}
    assert endpoint.most_in_flight == 3
    judged = [json.loads(line) for line in (tmp_path / "out" / "judged.jsonl").read_text().splitlines()]
    assert [line["resps"] for line in judged][:2] == [[["It is 7."]], [["It is 3."]]]
    # Started again it has all answers.
    endpoint.requests.clear()
    again = evaluate_harness(endpoint.url, KEY, "base", spec, tmp_path / "out")
    assert endpoint.requests == []
    assert again.splits == result.splits
