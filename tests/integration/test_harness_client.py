"""The client inside lm-evaluation-harness, without the harness, against an endpoint with faults."""

import asyncio
import json

import pytest

from crossmesh.evaluate import harness_client as room
from crossmesh.evaluate.harness_client import ANSWERS, ASKED, Asker, Failed, Settings
from openai_endpoint import KEY, Endpoint

pytestmark = pytest.mark.integration


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setattr(room, "_WAIT_S", 0.001)
    server = Endpoint()
    server.start()
    yield server
    server.stop()


def payload(question, **more):
    return {
        "messages": [{"role": "user", "content": question}], "model": "base", "max_tokens": 1280, "temperature": 0.2, "stop": ["END"],
        "seed": 3, **more,
    }  # fmt: skip


def ask(endpoint, folder, questions, **more):
    asker = Asker(Settings(f"{endpoint.url}/v1/chat/completions", "base", 3, 3, str(folder)), KEY)
    texts = asyncio.run(asker.ask([asker.request("pens", payload(question, **more)) for question in questions]))
    return texts, json.loads((folder / ASKED).read_text())


def test_what_is_sent_is_what_the_task_says_and_equal_requests_have_seeds_of_their_own(endpoint, tmp_path):
    texts, asked = ask(endpoint, tmp_path, ["a", "b", "a"])
    assert texts == ["answer to a", "answer to b", "answer to a"]
    assert sorted((r["messages"][0]["content"], r["seed"]) for r in endpoint.requests) == [("a", 3), ("a", 4), ("b", 3)]
    assert asked["sent"] == {"pens": [{"max_tokens": 1280, "temperature": 0.2, "stop": ["END"], "seed": 3}]}
    assert (asked["finish_reasons"], asked["prompt_tokens"], asked["completion_tokens"]) == ({"stop": 3}, 15, 9)


def test_answers_of_an_interrupted_start_are_not_asked_for_again_even_where_they_are_sampled(endpoint, tmp_path):
    endpoint.faults = {"c": [500] * 7}
    endpoint.finish = "length"
    with pytest.raises(Failed, match=r"3 answers came; requests failed for good \(http_500: 1; the last said: .*fault 500"):
        ask(endpoint, tmp_path, ["a", "a", "b", "c"], do_sample=True)
    with (tmp_path / ANSWERS).open("ab") as stream:
        stream.write(b'{"key": "torn')
    endpoint.requests.clear()
    texts, asked = ask(endpoint, tmp_path, ["a", "a", "b", "c"], do_sample=True)
    assert texts == ["answer to a", "answer to a", "answer to b", "answer to c"]
    assert [r["messages"][0]["content"] for r in endpoint.requests] == ["c"]
    assert asked["finish_reasons"] == {"length": 4}
    # And all of them are there once more.
    endpoint.requests.clear()
    assert ask(endpoint, tmp_path, ["a", "a", "b", "c"], do_sample=True) == (texts, asked)
    assert endpoint.requests == []


def test_what_is_no_answer_is_asked_for_again_and_then_costs_itself(endpoint, tmp_path):
    endpoint.bodies = {"a": [b'{"choices": null}'], "b": [b"<html>"] * 9}
    endpoint.faults = {"d": [400]}
    endpoint.answers = {"c": "\ud835 x"}
    texts, asked = ask(endpoint, tmp_path, ["a", "b", "c", "d"])
    assert texts == ["answer to a", "", "\ufffd x", ""]
    assert asked["errors"] == {"not_json": 1, "http_400": 1}
    assert asked["notes"] == {"half of a surrogate pair, replaced by U+FFFD": 1}
    bodies = [json.loads(line)["body"] for line in (tmp_path / ANSWERS).read_bytes().split(b"\n") if line]
    assert bodies.count("<html>") == 4
    endpoint.bodies = {question: [b"{}"] * 9 for question in "efghijkl"}
    with pytest.raises(Failed, match=r"0 answers came; .*no_choices: [345];"):
        ask(endpoint, tmp_path / "b", [*"efghijkl"])


def test_refused_parameters_are_left_out_and_stops_are_kept_to_by_us(endpoint, tmp_path):
    endpoint.refused = ["max_tokens", "stop"]
    endpoint.answers = {"a": "it is 7 END and so on"}
    texts, asked = ask(endpoint, tmp_path, ["a"])
    assert texts == ["it is 7 "]
    assert asked["sent"] == {"pens": [{"max_completion_tokens": 1280, "temperature": 0.2, "seed": 3}]}
    assert asked["changes"] == {"max_tokens as max_completion_tokens": 1, "stop": 1}
    assert ask(endpoint, tmp_path, ["a"]) == (texts, asked)


def test_a_wrong_key_ends_it_at_once(endpoint, tmp_path):
    asker = Asker(Settings(f"{endpoint.url}/v1/chat/completions", "base", 3, 1, str(tmp_path)), "other")
    with pytest.raises(Failed, match=r"status 401.*wrong key"):
        asyncio.run(asker.ask([asker.request("pens", payload(question)) for question in "abcdef"]))
    assert len(endpoint.requests) == 1
