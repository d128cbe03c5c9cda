"""When two evaluations are compared, and what a comparison says of itself."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from crossmesh.errors import InputError
from crossmesh.evaluate.paired import compare_counts
from crossmesh.evaluate.passk import estimate
from crossmesh.evaluate.results import EvalResult, SplitResult
from crossmesh.paper.evaluation import evaluation_json
from crossmesh.pipeline.evaluation import Evaluation
from crossmesh.pipeline.evaluation_job import _stored, compare
from crossmesh.pipeline.evaluation_tables import needed_words, render_evaluations
from crossmesh.track.tracked_run import TrackedRun

RECORD = {
    "task": "rtl",
    "task_digest": "a",
    "sampling": {"temperature": 0.0},
    "engine": {"dtype": "float32", "libraries": {"vllm": "0.32.0"}},
}


def evaluation(name, right, record=RECORD, split="heldout", answers=1):
    counts = {f"p{index}": (answers, passed) for index, passed in enumerate(right)}
    estimates = tuple(estimate(list(counts.values()), k) for k in {1, answers})
    part = SplitResult(split, len(counts), len(counts) * answers, sum(right), estimates, {"passed": sum(right)}, counts)
    result = EvalResult(name, (part,), record, (("broken", "compile_error"),), {}, 0, 0, 0, 1.0, "", ())
    return Evaluation(name, result, record, "0123456789abcdef", skipped=False)


def test_models_that_were_examined_alike_are_compared():
    (compared,) = compare(evaluation("tuned", [1] * 9 + [0]), evaluation("base", [0] * 9 + [1]))
    assert (compared.differing, compared.shown, compared.paired.better, compared.paired.worse) == ((), True, 9, 1)
    assert compared.json()["pass_at_k"] == [0.9, 0.1]
    assert compared.json()["comparable"] is True


def test_a_difference_in_how_they_were_examined_is_named_and_shows_nothing():
    other = {**RECORD, "sampling": {"temperature": 0.8}, "engine": {"dtype": "bfloat16", "libraries": {"vllm": "0.32.0"}}, "harness": "x"}
    (compared,) = compare(evaluation("tuned", [1] * 10), evaluation("base", [0] * 10, other))
    assert compared.differing == ("engine.dtype", "harness", "sampling.temperature")
    assert compared.paired.shown
    assert not compared.shown


def test_other_problems_are_not_compared():
    with pytest.raises(InputError, match=r"answered different problems.*task_digest differ"):
        list(compare(evaluation("a", [1, 0]), evaluation("b", [1, 0, 1], {**RECORD, "task_digest": "b"})))
    with pytest.raises(InputError, match="answered different problems"):
        list(compare(evaluation("a", [1, 0]), evaluation("b", [1, 0], split="hard")))


def test_every_k_that_both_have_is_compared():
    pairs = list(compare(evaluation("a", [5, 0, 3], answers=5), evaluation("b", [4, 1, 0], answers=5)))
    assert [pair.paired.k for pair in pairs] == [1, 5]
    assert [pair.k for pair in (p.paired for p in compare(evaluation("a", [5, 0, 3], answers=5), evaluation("b", [1, 1, 0])))] == [1]


def test_a_table_has_the_interval_the_test_and_what_is_left_out():
    from rich.console import Console

    one, other = evaluation("tuned [x]", [1] * 9 + [0]), evaluation("base", [0] * 9 + [1])
    out = Console(width=200, record=True, file=Mock(write=len))
    out.print(render_evaluations((one, other), tuple(compare(one, other))))
    text = out.export_text()
    for part in ("tuned [x]", "90.0%", "broken: left out, compile_error", "9/1 of 10", "shown", "exact McNemar"):
        assert part in text


def test_what_it_would_take_is_said():
    few = compare_counts({f"p{i}": (5, 3) for i in range(8)} | {"q": (5, 1)}, {f"p{i}": (5, 2 + i % 2) for i in range(8)} | {"q": (5, 2)})
    words = needed_words(few)
    assert "9 problems show" in words
    assert f"takes {few.problems_needed} problems" in words
    assert needed_words(replace(few, problems_needed=None)).endswith("with 80% power.")
    assert "or 12 answers to each" in needed_words(replace(few, samples_needed=12))


def test_the_papers_gap_in_json():
    said = evaluation_json()
    assert [one["right"] for one in said["results"]] == [500, 544]
    assert said["difference"]["independent"][1][0] < 0 < said["difference"]["independent"][1][1]


def test_an_earlier_evaluation_is_found_by_how_its_id_begins():
    earlier = evaluation("base", [1, 0])
    tracker = Mock(uri="sqlite:///x", ui_command="mlflow ui")
    run = TrackedRun("abcdef0123", "evaluate base", "FINISHED", tags={"crossmesh.kind": "evaluate"})
    tracker.matching.return_value = (run, replace(run, tags={"crossmesh.kind": "train"}), replace(run, status="FAILED"))
    tracker.read_json.side_effect = [earlier.result.to_json(), RECORD]
    found = _stored(tracker, "abc")
    assert (found.name, found.result, found.record) == ("base abcdef01", earlier.result, RECORD)
    tracker.matching.return_value = (run, run)
    with pytest.raises(InputError, match="'abc' begins the id of 2 finished evaluations of sqlite:///x"):
        _stored(tracker, "abc")


def test_verdicts_are_used_again_under_the_same_judge_only_and_answers_under_any(tmp_path, monkeypatch):
    from crossmesh.config.evaluation import EvalSpec
    from crossmesh.config.experiment import ExperimentSpec
    from crossmesh.config.services import StorageSpec
    from crossmesh.files import write_json
    from crossmesh.pipeline import evaluation as room

    judge = {"code": "a"}
    monkeypatch.setattr(room, "judge_record", lambda spec: {**judge, "cpu_s": spec.timeout_s})

    def examiner(**changed):
        return room.Examiner(ExperimentSpec(eval=EvalSpec(**changed), storage=StorageSpec(str(tmp_path))), Mock(), Mock())

    kept = evaluation("base", [1, 0])
    answers = examiner()._answers("base", "w")
    folder = examiner()._verdicts(answers)
    write_json(folder / "result.json", kept.result.to_json())
    write_json(folder / "run.json", {"run_id": "r", "record": RECORD})
    assert examiner().kept("base", "w", force=False).run_id == "r"
    assert examiner(workers=9, concurrency=1).kept("base", "w", force=False).run_id == "r"
    assert examiner(timeout_s=0.2).kept("base", "w", force=False) is None
    assert examiner(timeout_s=0.2)._answers("base", "w") == answers
    for other in ({"temperature": 0.5}, {"max_tokens": 8}, {"seed": 1}):
        assert examiner(**other)._answers("base", "w") != answers
    judge["code"] = "b"
    assert examiner().kept("base", "w", force=False) is None
    judge["code"] = "a"
    assert examiner().kept("base", "w", force=True) is None
    assert not answers.exists()
