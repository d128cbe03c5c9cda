"""lm-evaluation-harness itself against an endpoint, in the environment of `make harness`."""

import json

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.evaluate.lm_eval import evaluate_harness
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
    # The task says that answers end at an empty line, the spec how long they may be; nothing else is sent but the harness's own defaults.
    sent = {"max_tokens": 24, "temperature": 0, "stop": ["\n\n"], "seed": 0}
    assert [{key: value for key, value in r.items() if key not in ("messages", "model")} for r in endpoint.requests] == [sent] * 6
    assert result.comparable_on["sampling"] == {"sums": [sent]}
    assert result.cut_at_max_tokens == 0
    assert endpoint.most_in_flight == 3
    judged = [json.loads(line) for line in (tmp_path / "out" / "judged.jsonl").read_text().splitlines()]
    assert [line["resps"] for line in judged][:2] == [[["It is 7."]], [["It is 3."]]]
    # Started again it has all answers.
    endpoint.requests.clear()
    again = evaluate_harness(endpoint.url, KEY, "base", spec, tmp_path / "out")
    assert endpoint.requests == []
    assert again.splits == result.splits


def test_a_task_that_samples_keeps_its_settings_whatever_its_documents_hold(endpoint, tasks, tmp_path):
    """Documents with other line separators, metrics with odd names, cut answers, and answers that are kept although they are sampled."""
    (tasks / "odd.jsonl").write_text("".join(json.dumps({"a": f"{a}\u2028\x85?", "b": a}, ensure_ascii=False) + "\n" for a in range(3)))
    (tasks / "odd.py").write_text("def results(doc, answers):\n    return {'hit@1': int(str(doc['b']) in answers[0])}\n")
    (tasks / "odd.yaml").write_text(
        TASK.replace("sums", "odd").replace("DATA", str(tasks / "odd.jsonl")).replace('"What is {{a}} + {{b}}?"', '"{{a}}"')
        .replace("{{a + b}}", "{{b}}").replace('"\\n\\n"]}', '"\\n\\n"], max_gen_toks: 1280, temperature: 0.2, do_sample: true}')
        .replace("filter_list:", "process_results: !function odd.results\nfilter_list:").replace("exact_match", "hit@1")
    )  # fmt: skip
    endpoint.finish = "length"
    spec = EvalSpec(task="lm_eval", tasks=("odd",), path=str(tasks), concurrency=2)
    result = evaluate_harness(endpoint.url, KEY, "base", spec, tmp_path / "out")
    assert result.comparable_on["sampling"] == {"odd": [{"max_tokens": 1280, "temperature": 0.2, "stop": ["\n\n"], "seed": 0}]}
    assert result.cut_at_max_tokens == 3
    assert result.metrics["odd/hit@1,number"] == 1.0
    endpoint.requests.clear()
    assert evaluate_harness(endpoint.url, KEY, "base", spec, tmp_path / "out").splits == result.splits
    assert endpoint.requests == []
