"""A judge is known by what it does: its code without comments, its simulator, its sandbox and its limits."""

from dataclasses import replace

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.evaluate import judging
from crossmesh.evaluate.judge import limits_of
from crossmesh.evaluate.judging import code_text, judge_record

CODE = '''"""What it does."""

LIMIT = 3  # checks


def judge(answer: str) -> bool:
    """Say whether it is right."""
    if answer:
        return len(answer) > LIMIT
    return False
'''


def test_comments_docstrings_and_layout_are_no_code():
    same = CODE.replace('"""Say whether it is right."""', '"""Decide."""').replace("  # checks", "").replace("\n\n\n", "\n\n")
    same = same.replace('"""What it does."""\n', "# Nothing said.\n").replace("    if answer:", "    # Why.\n\n    if answer:")
    assert code_text(same) == code_text(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("return False", "return True"),
        ("> LIMIT", ">= LIMIT"),
        ("    return False", "        return False"),  # Within the branch.
        ("LIMIT = 3", 'LIMIT = 3\nNAME = "x"'),
    ],
)
def test_what_a_judge_does_is_its_code(old, new):
    assert code_text(CODE.replace(old, new)) != code_text(CODE)


@pytest.fixture(autouse=True)
def no_simulator(monkeypatch):
    monkeypatch.setattr(judging, "simulator_version", lambda: "Icarus Verilog 11")


@pytest.mark.parametrize("changed", [{"timeout_s": 0.2}, {"memory_mib": 256}, {"sandbox": "none"}])
def test_limits_and_sandbox_are_the_judge(changed):
    assert judge_record(replace(EvalSpec(), **changed)) != judge_record(EvalSpec())


@pytest.mark.parametrize("changed", [{"workers": 64}, {"concurrency": 1}, {"api_key_env": "X"}])
def test_how_many_are_judged_at_once_is_not(changed):
    assert judge_record(replace(EvalSpec(), **changed)) == judge_record(EvalSpec())


def test_the_simulator_and_the_code_are_the_judge(monkeypatch):
    before = judge_record(EvalSpec())
    monkeypatch.setattr(judging, "simulator_version", lambda: "Icarus Verilog 12")
    assert judge_record(EvalSpec()) != before
    monkeypatch.undo()
    monkeypatch.setattr(judging, "simulator_version", lambda: "Icarus Verilog 11")
    monkeypatch.setattr(judging, "_MODULES", judging._MODULES[1:])
    assert judge_record(EvalSpec())["code"] != before["code"]


def test_workers_on_too_few_cores_do_not_run_into_the_wall_clock(monkeypatch):
    monkeypatch.setattr("crossmesh.evaluate.judge.os.cpu_count", lambda: 2)
    assert limits_of(EvalSpec(workers=2)).wall_s == 100.0
    assert limits_of(EvalSpec(workers=64)).wall_s == 3200.0
