"""lm-evaluation-harness without it: what it is told, how its files are read, and what is said where it is missing."""

import json
import sys
from unittest.mock import Mock

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.evaluate import lm_eval as room
from crossmesh.evaluate.lm_eval import evaluate_harness, harness_python
from crossmesh.evaluate.results import EvalResult, read_result
from crossmesh.server_identity import ServerChangedError

SPEC = EvalSpec(task="lm_eval", tasks=("arith",), temperature=0.5, max_tokens=32, concurrency=4, seed=3, path="/tasks")
RESULTS = {
    "results": {"arith": {"alias": "arith", "exact_match,number": 0.75, "exact_match_stderr,number": 0.25, "bleu,none": 12.5}},
    "configs": {"arith": {}},
    "versions": {"arith": 1.0},
    "n-shot": {"arith": 0},
    "task_hashes": {"arith": "abc"},
    "lm_eval_version": "0.4.13",
}
ASKED = {
    "finish_reasons": {"stop": 2, "length": 1, "": 1},
    "errors": {"no_choices": 1},
    "notes": {},
    "changes": {"seed": 4},
    "prompt_tokens": 20,
    "completion_tokens": 12,
    "sent": {"arith": [{"temperature": 0.2, "max_tokens": 1280, "top_p": 1.0}]},
}
# Stands in for `python -m lm_eval run`: says what it was told and leaves files as the harness does.
STAND_IN = """
import json, os, pathlib, sys
arguments = sys.argv[4:]
out = pathlib.Path(arguments[arguments.index("--output_path") + 1]) / "m"
out.mkdir(parents=True, exist_ok=True)
client = json.loads(os.environ["CROSSMESH_HARNESS"])
told = {"arguments": arguments, "key": os.environ["OPENAI_API_KEY"], "client": client, "path": os.environ["PYTHONPATH"]}
out.parent.joinpath("told.json").write_text(json.dumps(told))
sys.stderr.write("Requesting API:   0%|   | 0/4 [00:00<?]\\rRequesting API:  50%|## | 2/4 [00:01]\\rRequesting API: 100%|####| 4/4\\n")
if "fail" in arguments[arguments.index("--tasks") + 1]:
    sys.exit("NotImplementedError: Loglikelihood is not supported" if "choice" in " ".join(arguments) else "boom")
(out / "results_2026-01-01T00-00-00.json").write_text(RESULTS)
pathlib.Path(client["folder"], "asked.json").write_text(ASKED)
document = {"q": "a\\u2028b\\x85c\\x0bd"}
lines = [
    {"doc_id": i, "doc": document, "filter": f, "metrics": ["exact_match", "bleu"], "exact_match": float(i > 0), "bleu": 1.5 * i}
    for i in range(4) for f in ("number", "last")
]
text = "".join(json.dumps(line, ensure_ascii=False) + "\\n" for line in lines)
(out / "samples_arith_2026-01-01T00-00-00.jsonl").write_text(text, encoding="utf-8")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    script = tmp_path / "harness.py"
    said = STAND_IN.replace("RESULTS)", f"{json.dumps(json.dumps(RESULTS))})").replace("ASKED)", f"{json.dumps(json.dumps(ASKED))})")
    script.write_text(said)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in -c) exit 0;; esac\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("CROSSMESH_PYTHON_EVAL_LM_EVAL", str(python))
    return python


@pytest.fixture(autouse=True)
def one_server(monkeypatch):
    """The server behind every URL stays the same."""
    monkeypatch.setattr(room, "Origin", Mock(return_value=Mock(models="")))


def test_the_harness_is_told_all_and_its_files_are_a_result(stand_in, tmp_path):
    seen = []
    result = evaluate_harness("http://h:1/v1/", "secret", "m", SPEC, tmp_path / "out", lambda *progress: seen.append(progress))
    told = json.loads((tmp_path / "out" / "harness" / "told.json").read_text())
    assert told["key"] == "secret"
    assert "secret" not in " ".join(told["arguments"])
    text = " ".join(told["arguments"])
    out = str(tmp_path / "out")
    assert told["client"] == {
        "url": "http://h:1/v1/chat/completions",
        "model": "m",
        "seed": 3,
        "concurrency": 4,
        "folder": out,
        "server": "",
    }
    assert text.startswith("--model crossmesh-chat --model_args model=m --gen_kwargs temperature=0.5 max_gen_toks=32 --tasks arith")
    assert text.endswith("--include_path /tasks")
    assert seen == [("generate", 0, 4), ("generate", 2, 4), ("generate", 4, 4)]
    # Right or wrong makes a split; a number does not.
    assert [split.split for split in result.splits] == ["arith exact_match,number", "arith exact_match,last"]
    assert result.splits[0].counts == {"0": (1, 0), "1": (1, 1), "2": (1, 1), "3": (1, 1)}
    assert result.splits[0].pass_at_1.value == 0.75
    # A document, or an answer, with other ends of lines is one document.
    assert json.loads((tmp_path / "out" / "judged.jsonl").read_text().split("\n")[0])["doc"] == {"q": "a\u2028b\x85c\x0bd"}
    # What was sent is the record, not what was asked for.
    assert result.comparable_on["sampling"] == ASKED["sent"]
    assert (result.cut_at_max_tokens, result.errors, result.prompt_tokens, result.completion_tokens) == (1, {"no_choices": 1}, 20, 12)
    assert result.warnings == (
        "1 answers do not say how they ended, so whether they were cut is not known",
        "the endpoint refuses seed; 4 requests were sent without it",
    )
    assert result.metrics == {"arith/exact_match,number": 0.75, "arith/exact_match_stderr,number": 0.25, "arith/bleu,none": 12.5}
    assert result.comparable_on["harness"] == "lm-eval 0.4.13"
    assert read_result(tmp_path / "out") == result
    assert EvalResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    # Other versions of its tasks are another task.
    again = evaluate_harness("http://h:1", "secret", "m", SPEC, tmp_path / "out")
    assert again.comparable_on == result.comparable_on


def test_a_task_keeps_its_own_settings_unless_the_spec_has_others(stand_in, tmp_path):
    open_ = EvalSpec(task="lm_eval", tasks=("arith",))
    assert (open_.temperature, open_.top_p, open_.max_tokens) == (None, None, None)
    evaluate_harness("http://h:1", "k", "m", open_, tmp_path / "a")
    assert "--gen_kwargs" not in json.loads((tmp_path / "a" / "harness" / "told.json").read_text())["arguments"]
    evaluate_harness("http://h:1", "k", "m", EvalSpec(task="lm_eval", tasks=("arith",), temperature=0.0), tmp_path / "b")
    told = json.loads((tmp_path / "b" / "harness" / "told.json").read_text())["arguments"]
    assert told[told.index("--gen_kwargs") + 1 :][:2] == ["temperature=0.0", "--tasks"]
    # Other tasks have none of their own.
    assert (EvalSpec().temperature, EvalSpec().top_p, EvalSpec().max_tokens) == (0.0, 1.0, 160)


def test_values_that_are_no_numbers_cost_themselves(stand_in, tmp_path):
    script = stand_in.parent / "harness.py"
    text = script.read_text().replace('"bleu,none\\": 12.5', '"bleu,none\\": 12.5, \\"f1,none\\": NaN, \\"ppl,none\\": Infinity')
    script.write_text(text.replace('"exact_match": float(i > 0)', '"exact_match": float(i > 0) if i < 3 else float("nan")'))
    result = evaluate_harness("http://h:1", "k", "m", SPEC, tmp_path / "out")
    assert set(result.metrics) == {"arith/exact_match,number", "arith/exact_match_stderr,number", "arith/bleu,none"}
    assert result.warnings[-2:] == (
        "the metric arith/f1,none is nan: it is left out",
        "the metric arith/ppl,none is inf: it is left out",
    )
    assert result.splits[0].counts == {"0": (1, 0), "1": (1, 1), "2": (1, 1), "3": (1, 0)}
    assert result.splits[0].reasons == {"right": 2, "wrong": 1, "no_value": 1}
    assert read_result(tmp_path / "out") == result


def test_when_another_server_answers_no_answer_of_the_harness_is_kept(stand_in, tmp_path, monkeypatch):
    class Replaced:
        models = ""

        def __init__(self, *_):
            pass

        def check(self, looks=8):
            raise ServerChangedError("another one")

    monkeypatch.setattr(room, "Origin", Replaced)
    with pytest.raises(ServerChangedError):
        evaluate_harness("http://h:1", "secret", "m", SPEC, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failing_harness_is_quoted_and_multiple_choice_is_explained(stand_in, tmp_path):
    with pytest.raises(CrossmeshError, match=r"exit code 1.*\nboom"):
        evaluate_harness("http://h:1", "k", "m", EvalSpec(task="lm_eval", tasks=("fail",)), tmp_path / "a")
    with pytest.raises(InputError, match="log-probabilities of prompts"):
        evaluate_harness("http://h:1", "k", "m", EvalSpec(task="lm_eval", tasks=("fail_choice",)), tmp_path / "b")
    with pytest.raises(InputError, match=r"eval\.tasks=\[gsm8k\]"):
        evaluate_harness("http://h:1", "k", "m", EvalSpec(task="lm_eval"), tmp_path / "c")


def test_a_missing_harness_is_an_error_that_says_how_to_install_it(tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setenv("CROSSMESH_PYTHON_EVAL_LM_EVAL", str(bare))
    with pytest.raises(InputError, match=r"`make harness`, or install lm-eval\[api\]==.* and set CROSSMESH_PYTHON_EVAL_LM_EVAL"):
        harness_python()
    monkeypatch.setenv("CROSSMESH_PYTHON_EVAL_LM_EVAL", str(tmp_path / "absent"))
    with pytest.raises(InputError, match="cannot be started: No such file"):
        harness_python()


def test_the_version_is_the_one_of_the_extra(checkout):
    assert f'lm-eval = ["{room.REQUIREMENT}"]' in (checkout / "pyproject.toml").read_text()
