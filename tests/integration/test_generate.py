"""Sampling and whole evaluations against an in-process endpoint that speaks the OpenAI protocol, faults included."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.training import DataSpec, RtlSpec
from crossmesh.errors import InputError
from crossmesh.evaluate import generate as room
from crossmesh.evaluate.generate import GenerationError, generate, sample_seed
from crossmesh.evaluate.harness import evaluate_endpoint, not_sent, open_task, warnings_of
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.results import read_result
from crossmesh.evaluate.tasks import load_task
from crossmesh.server_identity import HEADER, Origin, ServerChangedError
from openai_endpoint import KEY, Endpoint

pytestmark = pytest.mark.integration
EVAL = EvalSpec(concurrency=4, workers=2)
PROBLEMS = tuple(Problem(f"p{index}", ({"role": "user", "content": f"question {index}"},), "", "", "heldout", "m") for index in range(10))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = Endpoint()
    server.start()
    yield server
    server.stop()


def ask(endpoint, tmp_path, spec=EVAL, problems=PROBLEMS, model="base", key=KEY, progress=lambda done, total: None, origin=None):
    kept = {"path": tmp_path / "samples.jsonl", "identity": {"model": model}}
    return asyncio.run(generate(endpoint.url, key, model, problems, spec, **kept, on_progress=progress, origin=origin))


def test_answers_come_in_order_with_their_own_seeds_and_bounded_concurrency(endpoint, tmp_path):
    spec = replace(EVAL, samples=3, temperature=0.7, seed=5)
    seen = []
    samples = ask(endpoint, tmp_path, spec, progress=lambda done, total: seen.append((done, total)))
    assert [(sample.problem, sample.index) for sample in samples] == [(p.id, index) for p in PROBLEMS for index in range(3)]
    assert samples[4].text == "answer to question 1"
    assert endpoint.most_in_flight == 4
    assert (seen[0], seen[-1]) == ((0, 30), (30, 30))
    body = next(r for r in endpoint.requests if r["seed"] == sample_seed(5, "p1", 1))
    expected = {
        "model": "base",
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 160,
        "messages": [{"role": "user", "content": "question 1"}],
    }
    assert {key: value for key, value in body.items() if key != "seed"} == expected
    assert len({r["seed"] for r in endpoint.requests}) == 30


def test_a_busy_endpoint_is_asked_again(endpoint, tmp_path):
    endpoint.faults = {"question 3": [503, 503], "question 4": [429]}
    samples = ask(endpoint, tmp_path)
    assert [sample.text for sample in samples] == [f"answer to question {index}" for index in range(10)]
    assert Counter(r["messages"][0]["content"] for r in endpoint.requests)["question 3"] == 3


def test_failures_for_good_are_counted_by_kind_and_the_next_start_asks_only_for_the_rest(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_MAX_RETRIES", 1)
    endpoint.faults = {"question 3": [503] * 2, "question 7": [500] * 2}
    with pytest.raises(GenerationError, match=r"8 of 10 answers .* \(http_500: 1, http_503: 1;"):
        ask(endpoint, tmp_path)
    endpoint.requests.clear()
    samples = ask(endpoint, tmp_path)
    assert len(samples) == 10
    assert sorted(r["messages"][0]["content"] for r in endpoint.requests) == ["question 3", "question 7"]
    # Once more: nothing is left to ask, so the endpoint need not even be there.
    endpoint.requests.clear()
    assert ask(endpoint, tmp_path) == samples
    assert endpoint.requests == []


def test_an_endpoint_without_keys_gets_none(endpoint, tmp_path):
    endpoint.authorization = None
    assert len(ask(endpoint, tmp_path, key="")) == 10


def test_an_interrupted_run_keeps_its_answers(endpoint, tmp_path):
    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(endpoint, tmp_path, progress=interrupt)
    endpoint.requests.clear()
    assert len(ask(endpoint, tmp_path)) == 10
    assert len(endpoint.requests) == 7


def test_an_endpoint_that_is_gone_is_noticed_before_every_problem_was_tried(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_MAX_RETRIES", 0)
    url, origin = endpoint.url, Origin(endpoint.url, KEY)
    endpoint.url = "http://127.0.0.1:1"
    attempts = []
    many = tuple(replace(PROBLEMS[0], id=f"q{index}") for index in range(200))
    with pytest.raises(GenerationError, match=r"0 of 200 answers .*connection: (4|5|6|7);"):
        ask(endpoint, tmp_path, problems=many, progress=lambda done, total: attempts.append(done), origin=origin)
    assert len(attempts) <= 8
    endpoint.url = url


def test_a_wrong_key_and_an_unknown_model_are_the_users_mistakes(endpoint, tmp_path):
    with pytest.raises(InputError, match=r"does not list the models \(status 401.*wrong key"):
        ask(endpoint, tmp_path, key="other")
    with pytest.raises(InputError, match=r"refused to serve the model 'base'.*wrong key"):
        ask(endpoint, tmp_path, key="other", origin=Origin(endpoint.url, KEY))
    with pytest.raises(InputError, match=r"refused to serve the model 'jax'.*no such model"):
        ask(endpoint, tmp_path / "b", model="jax")
    assert len(endpoint.requests) <= 8


def test_a_refused_prompt_is_an_empty_answer_and_all_refused_is_an_error(endpoint, tmp_path):
    endpoint.faults = {"question 2": [400]}
    samples = ask(endpoint, tmp_path)
    assert [sample.error for sample in samples] == ["", "", "http_400", *[""] * 7]
    endpoint.faults = {p.messages[0]["content"]: [400] for p in PROBLEMS}
    with pytest.raises(InputError, match=r"refused every prompt.*fault 400"):
        ask(endpoint, tmp_path / "b")


def test_a_body_that_is_no_answer_costs_itself_and_all_that_came_is_kept_raw(endpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_NO_ANSWER_WAIT_S", 0.001)
    busy = b'{"choices": null, "usage": null, "error": {"message": "Provider returned error", "code": 429}}'
    endpoint.bodies = {"question 1": [b"<html>busy</html>"], "question 3": [b'{"choices": null}'] * 9, "question 4": [busy]}
    endpoint.answers = {"question 2": "\ud835 module\u2028m"}
    samples = ask(endpoint, tmp_path)
    assert [sample.error for sample in samples] == ["", "", "", "no_choices", *[""] * 6]
    assert (samples[2].text, samples[2].note) == ("\ufffd module\u2028m", "half of a surrogate pair, replaced by U+FFFD")
    raw = [json.loads(line) for line in (tmp_path / "samples.raw.jsonl").read_bytes().split(b"\n")[:-1]]
    assert Counter(line["problem"] for line in raw) == {**{f"p{index}": 1 for index in range(10)}, "p1": 2, "p3": 4, "p4": 2}
    assert "<html>busy</html>" in [line["body"] for line in raw]
    assert json.loads(next(line["body"] for line in raw if line["problem"] == "p2"))["choices"][0]["message"]["content"][0] == "\ud835"
    # Started again only what got no answer is asked.
    endpoint.requests.clear()
    endpoint.bodies = {}
    assert all(not sample.error for sample in ask(endpoint, tmp_path))
    assert [r["messages"][0]["content"] for r in endpoint.requests] == ["question 3"]
    endpoint.bodies = {p.messages[0]["content"]: [b'{"choices": []}'] * 99 for p in PROBLEMS}
    with pytest.raises(GenerationError, match=r"0 of 10 answers .*no_choices: \d"):
        ask(endpoint, tmp_path / "b")
    endpoint.bodies = {"question 3": [busy] * 99}
    with pytest.raises(GenerationError, match=r"9 of 10 answers .*\(error_429: 1; the last said: Provider returned error"):
        ask(endpoint, tmp_path / "c")


def test_parameters_that_the_endpoint_refuses_are_sent_otherwise_and_said(endpoint, tmp_path):
    endpoint.refused = ["max_tokens", "seed", "temperature"]
    samples = ask(endpoint, tmp_path)
    assert [sample.error for sample in samples] == [""] * 10
    answered = [r for r in endpoint.requests if not {"max_tokens", "seed", "temperature"} & r.keys()]
    assert len(answered) == 10
    assert all(r["max_completion_tokens"] == 160 for r in answered)
    assert len(endpoint.requests) - 10 <= 3 * EVAL.concurrency
    assert {sample.changes for sample in samples} == {("max_tokens as max_completion_tokens", "seed", "temperature")}
    # It is known of kept answers too.
    assert ask(endpoint, tmp_path) == samples
    assert not_sent(samples) == {"seed": "not sent", "temperature": "not sent"}
    assert not_sent([*samples, replace(samples[0], changes=())])["seed"] == "not sent with 10 of 11 requests"
    assert warnings_of(samples)[0] == "the endpoint refuses max_tokens; 10 requests were sent with max_completion_tokens"
    endpoint.refused = ["max_tokens", "max_completion_tokens"]
    with pytest.raises(InputError, match=r"refused every prompt \(http_400: 10\).*max_completion_tokens"):
        ask(endpoint, tmp_path / "b")


def test_a_url_without_scheme_is_refused(endpoint, tmp_path):
    endpoint.url, url = "127.0.0.1:8000", endpoint.url
    with pytest.raises(InputError, match="is not an http:// or https:// URL"):
        ask(endpoint, tmp_path)
    endpoint.url = url


def test_an_evaluation_end_to_end(endpoint, tmp_path):
    data = DataSpec(rtl=RtlSpec(train_rows=1, heldout_rows=12, hard_rows=4))
    problems = load_task(EVAL, data)
    for index, problem in enumerate(problems):
        right = f"```verilog\n{problem.reference}\n```"
        endpoint.answers[problem.messages[-1]["content"]] = right if index % 3 else "```verilog\nmodule other; endmodule\n```"
    endpoint.faults = {problems[1].messages[-1]["content"]: [503, 503], problems[2].messages[-1]["content"]: [400]}
    stages = []

    def progress(stage, done, total):
        stages.append((stage, done, total))

    task = open_task(EVAL, data, progress)
    result = evaluate_endpoint(endpoint.url + "/v1/", KEY, "base", EVAL, task, tmp_path / "out", progress)
    heldout, hard = result.splits
    # Of 12 held-out problems 0, 3, 6, 9 are junk and 2 is refused: 7 right. Of the hard ones 12 and 15 are junk: 2 right.
    assert (heldout.split, heldout.problems, heldout.passed) == ("heldout", 12, 7)
    assert heldout.counts == {problem.id: (1, int(index % 3 and index != 2)) for index, problem in enumerate(problems[:12])}
    assert heldout.reasons == {"passed": 7, "no_answer": 1, "wrong_module": 4}
    assert (hard.split, hard.passed, hard.pass_at_1.value) == ("hard", 2, 0.5)
    assert heldout.pass_at_1.value == pytest.approx(7 / 12)
    assert (heldout.pass_at_1.low, heldout.pass_at_1.high) == pytest.approx((0.3195, 0.8067), abs=1e-3)
    assert (result.errors, result.excluded, result.warnings) == ({"http_400": 1}, (), ())
    assert result.comparable_on["sampling"] == {"temperature": 0.0, "top_p": 1.0, "max_tokens": 160, "samples": 1, "seed": 0}
    assert stages[-1] == ("judge", 15, 15)
    assert ("references", 16, 16) in stages
    # What is kept says the same.
    assert read_result(tmp_path / "out") == result
    assert json.loads(json.dumps(result.to_json())) == json.loads((tmp_path / "out" / "result.json").read_text())
    judged = [json.loads(line) for line in (tmp_path / "out" / "judged.jsonl").read_text().splitlines()]
    assert [line["reason"] for line in judged[:3]] == ["wrong_module", "passed", "no_answer"]
    # Again: only the refused prompt is asked again, and now answered.
    endpoint.requests.clear()
    again = evaluate_endpoint(endpoint.url, KEY, "base", EVAL, task, tmp_path / "out")
    assert len(endpoint.requests) == 1
    assert again.split("heldout").passed == 8
    # An endpoint that does not say its tokens is known by how many there were, of refused prompts none.
    assert set(again.comparable_on["prompts"]) == {"token_counts"}
    assert {**again.comparable_on, "prompts": {}} == {**result.comparable_on, "prompts": {}}
    # The same name with other weights behind it must not inherit the answers.
    with pytest.raises(InputError, match="model_digest differ"):
        evaluate_endpoint(endpoint.url, KEY, "base", EVAL, task, tmp_path / "out", model_digest="abc")


def test_the_driver_side_loads_no_framework():
    import subprocess
    import sys
    from pathlib import Path

    code = (
        "import sys, openai, crossmesh.evaluate.harness\n"
        "from crossmesh.evaluate.passk import wilson\n"
        "wilson(1, 2)\n"
        "print(sorted({'jax', 'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(Path(room.__file__).parents[2])}, capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"


@pytest.mark.parametrize("every", [1, 3, 7])
def test_answers_of_two_servers_on_one_port_are_never_mixed(endpoint, tmp_path, every):
    one, other = {HEADER: "a" * 64}, {HEADER: "b" * 64}
    endpoint.headers = [one] * 9 + [*[one] * every, other]
    origin = Origin(endpoint.url, KEY, "a" * 64)
    endpoint.answered = 0
    endpoint.headers = [*[one] * every, other]
    with pytest.raises(ServerChangedError, match="fingerprint bbbbbbbbbbbb, not aaaaaaaaaaaa"):
        ask(endpoint, tmp_path, origin=origin)
    kept = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()[1:]]
    assert len(kept) < 10
    assert all(endpoint.given[sample["text"]] == one for sample in kept)
    endpoint.headers = [one]
    assert len(ask(endpoint, tmp_path, origin=origin)) == 10


def test_answers_that_do_not_say_where_they_come_from_are_dropped_when_the_server_has_changed(endpoint, tmp_path):
    few = PROBLEMS[:2]
    ask(endpoint, tmp_path, problems=few)
    origin = Origin(endpoint.url, KEY)

    def replace_it(done, total):
        if done == 5:
            endpoint.models = ["base", "another"]

    with pytest.raises(ServerChangedError, match="another"):
        ask(endpoint, tmp_path, origin=origin, progress=replace_it)
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 3, "those of the first call, whose server was looked at after it"
    assert len(ask(endpoint, tmp_path)) == 10
