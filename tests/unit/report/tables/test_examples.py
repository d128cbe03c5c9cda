"""Answers on the page: which ones is a rule, and what a model wrote is text and nothing else."""

import json
from dataclasses import replace

import pytest

from crossmesh.files import digest_text
from crossmesh.report.pages.html import render_html
from crossmesh.report.pages.markdown import render_markdown
from crossmesh.report.pages.write import make_report
from crossmesh.report.tables.examples import MOST_VARIANTS, by_kind, examples, read_said
from crossmesh.report.variants import Said

EVIL = "</pre><script>alert(1)</script>\n\n```\n# heading <img src=x onerror=alert(2)>"
KINDS = ("adder", "mux", "counter")
PROBLEMS = [f"{kind}-{number:012x}" for kind in KINDS for number in range(4)]


def judged(right, text="module m; endmodule"):
    said = {one: Said(text, one in right, "passed" if one in right else "compile: <b>syntax</b>") for one in PROBLEMS}
    return {"answers": {"heldout": {one: (1, int(one in right)) for one in PROBLEMS}}, "said": said}


@pytest.fixture
def answered(results):
    """The base solves nothing, torch the adders and writes markup, jax all."""
    given = {"base": judged(()), "torch": judged(PROBLEMS[:4], EVIL), "jax": judged(PROBLEMS)}
    return replace(results, variants=tuple(replace(one, **given[one.name]) for one in results.variants))


def test_two_that_passed_and_two_that_failed_with_the_bases_answer_to_the_same_problem(answered):
    shown = examples(answered)
    torch = [one for one in shown if one.variant == "torch"]
    assert [one.said.passed for one in torch] == [True, True, False, False]
    first = sorted(PROBLEMS[:4], key=digest_text)[:2] + sorted(PROBLEMS[4:], key=digest_text)[:2]
    assert [one.problem for one in torch] == first
    assert all(one.base == answered.variants[0].said[one.problem] for one in shown)
    assert [one.said.passed for one in shown if one.variant == "jax"] == [True, True]
    assert {one.variant for one in shown} == {"torch", "jax"}


def test_a_base_that_was_examined_otherwise_is_not_set_beside(answered):
    base = answered.variants[0]
    other = replace(base, record=replace(base.record, evaluation={**base.record.evaluation, "sampling": {"temperature": 1.0}}))
    assert all(one.base is None for one in examples(replace(answered, variants=(other, *answered.variants[1:]))))


def test_what_a_model_wrote_is_text_in_all_three_files(answered):
    report = make_report(answered)
    page = render_html(report.results, report.comparison, report.found)
    text = render_markdown(report.results, report.comparison, report.found)
    for made in (page, text):
        assert "alert(1)" in made
        assert "<script>alert" not in made
        assert "<img" not in made
        assert made.count("<pre") == made.count("</pre>")
    assert "<b>syntax" not in page
    assert "<b>syntax" not in text
    samples = report.json()["samples"]
    assert samples[0]["said"] == {"text": EVIL, "passed": True, "reason": "passed"}
    assert samples[0]["base"]["passed"] is False


def test_pass_at_1_by_kind_has_an_interval_and_the_number_of_problems(answered):
    table = by_kind(answered)
    rows = {row[0].text: row for row in table.rows}
    assert sorted(rows) == sorted(KINDS)
    assert rows["adder"][0].note == "held-out, 4 problems"
    assert [cell.text for cell in rows["adder"][1:]] == ["0.0%", "100.0%", "100.0%"]
    assert rows["mux"][2].text == "0.0%"
    assert rows["mux"][2].note == "0.0% to 49.0%"  # Wilson, 0 of 4.
    assert next(one for one in make_report(answered).json()["kinds"] if one["kind"] == "mux")["pass_at_1"]["jax"]["value"] == 1.0


def test_problems_without_a_kind_and_many_models_have_neither(answered, results):
    other = tuple(replace(one, record=replace(one.record, evaluation={"task": "verilog_eval"})) for one in answered.variants)
    assert by_kind(replace(answered, variants=other)) is None
    assert by_kind(results) is None
    base = answered.variants[0]
    many = tuple(replace(base, name=f"v{number}") for number in range(MOST_VARIANTS + 1))
    assert examples(replace(answered, variants=many)) == ()


def test_a_file_of_verdicts_gives_first_answers_shortened_and_without_what_steers_a_screen(tmp_path):
    line = {
        "problem": "a",
        "index": 0,
        "text": "x\x1b[2J\u202e" + "y" * 2000,
        "passed": False,
        "reason": "compile",
        "detail": "d",
        "error": "",
    }
    lines = [
        json.dumps({**line, "index": 1}),
        json.dumps(line),
        "not json",
        "[]",
        json.dumps({"task": "other"}),
        json.dumps({**line, "problem": "b"}),
    ]
    file = tmp_path / "judged.jsonl"
    file.write_text("\n".join(lines))
    found = read_said(file)
    assert sorted(found) == ["a", "b"]
    assert found["a"].reason == "compile: d"
    assert found["a"].text.startswith("x\ufffd[2J\ufffdyyy")
    assert found["a"].text.endswith("[... 1,206 more characters]")
