"""A benchmark of one's own read from folders and lines: what is asked, what is judged with, and what is wrong with a problem."""

import json

import pytest

from crossmesh.errors import InputError
from crossmesh.evaluate.own_problems import load_problems
from crossmesh.evaluate.problems import NONCE, task_digest
from crossmesh.evaluate.screening import refusal
from own_problem_files import ADDER, write_problems

PASSED = "Your Design Passed"


def test_rtllms_layout_is_read_as_it_is(tmp_path):
    problems = {problem.id: problem for problem in load_problems(str(write_problems(tmp_path)), PASSED, "Be brief.")}
    assert sorted(problems) == ["adder", "broken", "lenient", "rom", "silent", "stray"]
    adder = problems["adder"]
    assert adder.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Implement adder."})
    assert (adder.module, adder.top, adder.split, adder.defect) == ("adder", "testbench", "problems", "")
    assert "module adder(" in adder.reference
    assert PASSED not in adder.testbench
    assert adder.testbench.count(f"\\nPASS {NONCE}\\n") == 1
    assert refusal(ADDER, adder.testbench) == ""
    assert refusal(ADDER.replace("a + b", "testbench.sum"), adder.testbench) != ""
    assert dict(problems["rom"].files) == {"test_data.dat": "00 03 06 09\n"}
    assert problems["silent"].defect.startswith(f"its testbench never prints {PASSED!r}; set eval.success_text")
    assert problems["stray"].defect == "its testbench instantiates no module of its reference"


def test_lines_are_read_by_their_keys_and_a_testbench_may_have_its_own_words(tmp_path):
    folders = {problem.id: problem for problem in load_problems(str(write_problems(tmp_path / "folders")), PASSED, "")}
    bench = (tmp_path / "folders" / "Arithmetic" / "Adder" / "adder" / "testbench.v").read_text()
    rows = [
        {"id": "one", "prompt": "Add.\u2028Well.", "tests": bench, "reference": ADDER, "difficulty": 3},
        {"task_id": 7, "prompt": "Add.", "testbench": bench.replace(PASSED, "ALL GOOD"), "solution": ADDER, "success_text": "ALL GOOD"},
        {"prompt": "Add.", "test": bench, "canonical_solution": ADDER, "split": "hard", "files": {"a.dat": "1"}},
        {"prompt": " ", "test": bench, "reference": ADDER},
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    problems = load_problems(str(file), PASSED, "")
    assert [(problem.id, problem.split, problem.defect) for problem in problems] == [
        ("7", "problems", ""),
        ("line_0003", "hard", ""),
        ("line_0004", "problems", "it has no prompt"),
        ("one", "problems", ""),
    ]
    assert all(NONCE in problem.testbench for problem in problems if not problem.defect)
    assert problems[0].testbench == folders["adder"].testbench
    assert dict(problems[1].files) == {"a.dat": "1"}
    assert task_digest(problems) != task_digest(problems[1:])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "p", "reference": "r"}', "line 1 has no testbench or tests or test; it has prompt, reference"),
        ('{"prompt": "p", "tests": ["a"], "reference": "r"}', "line 1: tests has the wrong type: expected str, got list"),
        ('{"prompt": "p", "tests": "t", "reference": "r", "files": {"../x": "1"}}', "line 1: files must map plain names to texts"),
        (r'{"prompt": "\ud800", "tests": "t", "reference": "r"}', "line 1 holds half of a surrogate pair"),
        ("[1]", "line 1 is not a JSON object"),
        ("{", "JSONDecodeError"),
        ("", "has no problems. Needed: a folder"),
    ],
)
def test_lines_of_another_form_are_refused_with_the_form(tmp_path, line, said):
    file = tmp_path / "own.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match=r"Needed: a folder .*design_description\.txt.*\.jsonl") as refused:
        load_problems(str(file), PASSED, "")
    assert said in str(refused.value)


def test_what_is_not_there_or_twice_is_named(tmp_path):
    with pytest.raises(InputError, match=r"eval\.path='/nowhere' does not exist"):
        load_problems("/nowhere", PASSED, "")
    with pytest.raises(InputError, match=r"has no problems"):
        load_problems(str(tmp_path), PASSED, "")
    write_problems(tmp_path / "a")
    write_problems(tmp_path / "b")
    with pytest.raises(InputError, match=r"more than one problem named adder, broken"):
        load_problems(str(tmp_path), PASSED, "")
