"""What endpoints send: answers, what is none, and refusals of parameters."""

import json

import pytest

from crossmesh.evaluate.answers import HALF_CHARACTER, Answer, NoAnswerError, Parameters, left_out, read_answer, refused_parameter

SENT = {"temperature": 0.0, "top_p": 1.0, "max_tokens": 8, "seed": 1}


def body(message, **more):
    return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more}).encode()


@pytest.mark.parametrize(
    ("came", "answer"),
    [
        (body({"content": "a\u2028b"}, usage={"prompt_tokens": 5, "completion_tokens": 3}), Answer("a\u2028b", "stop", 5, 3)),
        (body({"content": "\ud835 x"}), Answer("\ufffd x", "stop", 0, 0, HALF_CHARACTER)),
        (body({"content": "\ud835\udc00"}), Answer("\U0001d400", "stop", 0, 0)),
        (body({"content": None, "reasoning_content": "thinking"}, usage=None), Answer("", "stop", 0, 0)),
        (body({"role": "assistant"}), Answer("", "stop", 0, 0)),
        (body({"content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two"}]}), Answer("one two", "stop", 0, 0)),
        (body({"content": "x"}, usage={"prompt_tokens": "5", "completion_tokens": 10**40}), Answer("x", "stop", 0, 0)),
        (body({"content": "x"}, usage={"prompt_tokens": float("nan"), "completion_tokens": -3}), Answer("x", "stop", 0, 0)),
        (body({"content": "x"}, usage={"prompt_tokens": True, "completion_tokens": None}), Answer("x", "stop", 0, 0)),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": null}]}', Answer("x", "", 0, 0)),
        (b'{"choices": [{"message": {"content": "x"}, "finish_reason": 7}], "usage": [1]}', Answer("x", "", 0, 0)),
    ],
)
def test_an_answer_is_read_whatever_is_odd_about_it(came, answer):
    assert read_answer(came) == answer


@pytest.mark.parametrize(
    ("came", "kind", "busy"),
    [
        (b"<!doctype html><title>Log in</title>", "not_json", False),
        (b"", "not_json", False),
        (b"[1, 2]", "not_json", False),
        (b"\xff\xfe{", "not_json", False),
        (b"[" * 200_000, "not_json", False),
        (b'{"choices": ' + b"1" * 5000 + b"}", "not_json", False),
        (b'{"choices": null}', "no_choices", False),
        (b'{"choices": []}', "no_choices", False),
        (b'{"choices": {"0": 1}}', "no_choices", False),
        (b'{"choices": [null]}', "no_choices", False),
        (b'{"choices": [{"message": null}]}', "no_choices", False),
        (b'{"choices": [{"text": "x"}]}', "no_choices", False),
        (body({"content": 7}), "no_text", False),
        (body({"content": [{"text": 7}]}), "no_text", False),
        (b'{"choices": null, "error": {"message": "Provider returned error", "code": 429}}', "error_429", True),
        (b'{"error": {"message": "down", "code": "502"}}', "error_502", True),
        (b'{"error": {"message": "filtered", "code": "content_filter"}}', "error", False),
        (b'{"error": "no"}', "error", False),
        (b'{"error": {"code": 400}}', "error_400", False),
    ],
)
def test_what_is_no_answer_has_a_name(came, kind, busy):
    with pytest.raises(NoAnswerError) as raised:
        read_answer(came)
    assert (raised.value.kind, raised.value.busy) == (kind, busy)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (
            {
                "error": {
                    "message": "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
                }
            },
            "max_tokens",
        ),
        ({"error": {"message": "no", "param": "max_tokens", "code": "unsupported_parameter"}}, "max_tokens"),
        (
            {
                "error": {
                    "message": "'temperature' does not support 0 with this model.",
                    "param": "temperature",
                    "code": "unsupported_value",
                }
            },
            "temperature",
        ),
        ({"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 5}]}, "seed"),
        ({"object": "error", "message": "[{'type': 'extra_forbidden', 'loc': ('body', 'top_p'), 'msg': 'Extra inputs'}]"}, "top_p"),
        ({"error": {"message": "Unrecognized request arguments supplied: seed, top_p"}}, "seed"),
        # About something else.
        ({"error": {"message": "max_tokens is too large: 4096. This model supports at most 2048.", "param": "max_tokens"}}, None),
        ({"error": {"message": "This model's maximum context length is 512 tokens; you requested 600 (max_tokens)."}}, None),
        ({"error": {"message": "content filtered", "code": "content_filter"}}, None),
        ({"error": {"message": "Unsupported parameter: 'logprobs'", "param": "logprobs"}}, None),
        ({"error": {"message": "response_format is not supported"}}, None),
        ({"error": {"message": "the word my_seed is not supported"}}, None),
        ("plain text", None),
    ],
)
def test_a_refused_parameter_is_recognized_by_its_name(said, name):
    assert refused_parameter(json.dumps(said).encode(), SENT) == name


def test_refused_parameters_are_left_out_or_renamed_one_by_one():
    known = Parameters()
    assert known.sent(SENT) == SENT
    assert not known.refuses(500, b"max_tokens is not supported", SENT)
    assert known.refuses(400, b"max_tokens is not supported", SENT)
    assert known.sent(SENT) == {"temperature": 0.0, "top_p": 1.0, "seed": 1, "max_completion_tokens": 8}
    assert known.refuses(422, b"unknown field `seed`", known.sent(SENT))
    assert known.sent(SENT) == {"temperature": 0.0, "top_p": 1.0, "max_completion_tokens": 8}
    assert known.changes(SENT) == ("max_tokens as max_completion_tokens", "seed")
    assert left_out(known.changes(SENT)) == ("seed",)
    # The length of answers is never left open.
    assert not known.refuses(400, b"max_completion_tokens is not supported", known.sent(SENT))
    # Another request of the same moment was refused as well: it is sent again too.
    assert known.refuses(400, b"max_tokens is not supported", SENT)
