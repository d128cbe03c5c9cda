"""How a simulation's outcome is read, without simulating."""

import pytest

from crossmesh.errors import InputError
from crossmesh.evaluate.generate import sample_seed
from crossmesh.evaluate.judge import REASONS, decide
from crossmesh.evaluate.problems import Problem, module_under_test, task_digest
from crossmesh.evaluate.sandbox import Outcome


@pytest.mark.parametrize(
    ("returncode", "output", "stopped", "reason"),
    [
        (0, "VCD info\nPASS n0nce\n", "", "passed"),
        (0, "PASS n0nce2\n", "", "no_verdict"),
        (0, "PASS  n0nce\nPASS\nPASS n0nce x\n", "", "no_verdict"),
        (0, "a=1b=0PASS n0nce\n", "", "passed"),  # A design had begun the line.
        (0, "PASS n0nce 3\nLATE n0nce\n", "", "timeout"),
        (0, "TIMEOUT\nLATE 0123\nPASS n0nce\n", "", "passed"),  # What a design prints says nothing.
        (0, "===Test completed with 3 /100 failures===\n", "", "mismatch"),
        (0, "FAIL 3 mismatches\n", "", "mismatch"),
        (0, "", "", "no_verdict"),
        (97, "design.sv:1: syntax error\n", "", "compile_error"),
        # Exit codes alone never pass, and a pass line does not excuse a crash or a kill.
        (1, "PASS n0nce\n", "", "crashed"),
        (-9, "PASS n0nce\n", "timeout", "timeout"),
        (-9, "PASS n0nce\n", "output_limit", "output_limit"),
        (128 + 24, "", "", "timeout"),
    ],
)
def test_outcomes(returncode, output, stopped, reason):
    verdict = decide(Outcome(returncode, output, stopped, 0.1), "n0nce")
    assert verdict.reason == reason
    assert verdict.passed == (reason == "passed")
    assert reason in REASONS


def test_module_is_the_one_that_the_testbench_instantiates():
    reference = "// module fake(\nmodule helper(input a); endmodule\nmodule top(input a); helper h(a); endmodule"
    assert module_under_test(reference, "module tb; top dut(a); endmodule", "p") == "top"
    with pytest.raises(InputError, match="'p': its testbench instantiates no module"):
        module_under_test(reference, "module tb; other dut(a); endmodule", "p")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("PASS n0nce 110", "passed"),
        # Ended early, by $finish for one: fewer checks than the reference had.
        ("PASS n0nce 3", "no_verdict"),
        ("PASS n0nce", "no_verdict"),
        ("PASS n0nce 0", "no_verdict"),
        # Ended by the testbench's own clock, whatever it counted.
        ("TIMEOUT\nLATE n0nce\nPASS n0nce 110", "timeout"),
        ("xLATE n0nce\nPASS n0nce 110", "timeout"),
        ("FAIL 1 of 110", "mismatch"),
    ],
)
def test_a_testbench_that_counts_must_come_to_its_end(line, reason):
    verdict = decide(Outcome(0, f"VCD info\n{line}\n", "", 0.1), "n0nce", 110)
    assert verdict.reason == reason
    assert verdict.checks == (110 if reason == "passed" else 0)


def test_task_digest_sees_prompts_and_testbenches_and_not_references():
    problem = Problem("p", ({"role": "user", "content": "?"},), "r", "t", "s", "m")
    same = Problem("p", ({"content": "?", "role": "user"},), "other", "t", "s", "m")
    other = Problem("p", ({"role": "user", "content": "?"},), "r", "t2", "s", "m")
    assert task_digest([problem]) == task_digest([same])
    assert task_digest([problem]) != task_digest([other])


def test_seeds_are_fixed_and_differ_by_sample():
    seeds = {sample_seed(seed, problem, index) for seed in (0, 1) for problem in ("a", "b") for index in (0, 1)}
    assert len(seeds) == 8
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    # `printf 0:0:a | sha256sum` starts with 5afc6a95; its upper 31 bits.
    assert sample_seed(0, "a", 0) == 0x5AFC6A95 >> 1
