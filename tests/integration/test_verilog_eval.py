"""verilog-eval with a real simulator: its own solutions, completions, and designs that would pass without having solved anything."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.evaluate.judge import SIMULATOR, judge, judge_references, limits_of, simulate
from crossmesh.evaluate.sandbox import Limits, open_sandbox
from crossmesh.evaluate.verilog_eval import load_verilog_eval
from verilog_eval_files import GATE, GATE_PORTS, REGISTER, REGISTER_PORTS, write_dataset

pytestmark = pytest.mark.integration
LIMITS = Limits(wall_s=10.0, cpu_s=2.0)


@pytest.fixture(scope="module")
def box():
    return open_sandbox("bubblewrap", SIMULATOR)


@pytest.fixture(scope="module")
def references(tmp_path_factory, box):
    problems = load_verilog_eval(str(write_dataset(tmp_path_factory.mktemp("set") / "dataset")), "spec_to_rtl", "")
    return judge_references(problems, box, LIMITS, 2)


@pytest.fixture(scope="module")
def gate(references):
    return references.usable[0]


@pytest.fixture(scope="module")
def register(references):
    return references.usable[1]


def top(ports, body):
    return f"module TopModule {ports}{body}endmodule\n"


def test_solutions_that_this_simulator_cannot_judge_are_left_out_by_name(references):
    assert [problem.id for problem in references.usable] == ["Prob001_gate", "Prob002_register"]
    # As many edges of the clock as the stimulus lasts for, counted by the reference's own run.
    assert [problem.checks for problem in references.usable] == [50, 50]
    assert references.excluded == (("Prob003_broken", "compile_error"),)
    assert references.blind == ()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (GATE, "passed"),
        ("  wire x = a & b;\n  assign out = x;\n", "passed"),
        ("  assign out = a | b;\n", "mismatch"),
        ("  assign out = a & b & 1'bx;\n", "mismatch"),
        ("  reg r; assign out = r;\n", "mismatch"),
        ("  wire w;\n", "empty_module"),
        (GATE + "  initial $finish;\n", "refused"),
        (GATE + '  final $display("Mismatches: 0 in 50 samples");\n', "passed"),
        ('  assign out = a | b;\n  final $display("Mismatches: 0 in 50 samples");\n', "mismatch"),
        ("  RefModule copy(a, b, out);\n", "refused"),
        ("  assign out = good1.out;\n", "refused"),
    ],
)
def test_verdicts(gate, box, body, reason):
    verdict = judge(gate, f"```verilog\n{top(GATE_PORTS, body)}```", box, LIMITS)
    assert verdict.reason == reason, verdict


def test_unknown_values_spread_into_a_mismatch(register, box):
    # Without a first value the feedback stays unknown for ever.
    feedback = "  reg r; always @(posedge clk) begin r <= r ^ a; out <= r; end\n"
    assert judge(register, top(REGISTER_PORTS, feedback), box, LIMITS).reason == "mismatch"
    assert judge(register, top(REGISTER_PORTS, REGISTER), box, LIMITS).passed


MISSED = {
    "ends the simulation at once": ("  initial $finish;\n", "mismatch"),
    "ends it before the first mismatch": ("  initial #12 $finish;\n", "no_verdict"),
    "prints what the benchmark prints": ('  initial $display("Mismatches: 0 in 50 samples");\n', "mismatch"),
    "prints a pass of another nonce": ('  initial $display("PASS 0123456789abcdef 50");\n', "mismatch"),
    "prints the pass and ends": (
        '  string n; initial if ($value$plusargs("nonce=%s", n)) begin $display("PASS %0s", n); $finish; end\n',
        "no_verdict",
    ),
    "stops for a person": ("  initial $stop;\n", "mismatch"),
}


@pytest.mark.parametrize("way", MISSED)
def test_a_testbench_that_did_not_run_to_its_end_never_passes(way, gate, box):
    """Designs that are right for a while, past the screening, as if that had missed what they do."""
    body, reason = MISSED[way]
    verdict = simulate(gate, top(GATE_PORTS, f"  assign out = $time < 12 ? a & b : 1'bx;\n{body}"), box, LIMITS)
    assert not verdict.passed
    assert verdict.reason == reason, verdict


def test_completions_are_judged_with_their_header(tmp_path, box):
    problems = load_verilog_eval(str(write_dataset(tmp_path / "set", completing=True)), "code_complete", "")
    usable = judge_references(problems, box, LIMITS, 2).usable
    assert [problem.id for problem in usable] == ["Prob001_gate", "Prob002_register"]
    for answer in (f"{GATE}endmodule", f"Sure:\n```verilog\n{GATE}endmodule\n```", top(GATE_PORTS, GATE)):
        assert judge(usable[0], answer, box, LIMITS).passed
    assert judge(usable[0], GATE, box, LIMITS).reason == "truncated"
    assert judge(usable[0], "  assign out = a;\nendmodule", box, LIMITS).reason == "mismatch"
    # Without the header the same is not a module.
    assert judge(replace(usable[0], header=""), f"{GATE}endmodule", box, LIMITS).reason == "no_module"


ATTACKS = {
    "forks by $system": '$system("touch /escaped; echo FORKED")',
    "writes a memory to the host": '$writememh("/usr/escaped", m)',
    "reads the host's users": '$readmemh("/etc/passwd", m)',
    "reads its own judge": 'f = $fopen("/sandbox/../proc/self/environ", "r"); $display("fd=%0d", f)',
    "opens a device": 'f = $fopen("/dev/mem", "r"); $display("fd=%0d", f)',
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_past_the_screening_stay_in_the_sandbox(attack, gate, box):
    body = f"  integer f; reg [7:0] m [0:9];\n  initial begin {ATTACKS[attack]}; end\n  assign out = 1'bx;\n"
    verdict = simulate(gate, top(GATE_PORTS, body), box, LIMITS)
    assert not verdict.passed
    assert "FORKED" not in verdict.detail
    assert "root:" not in verdict.detail
    if "fd=" in verdict.detail:
        assert "fd=0" in verdict.detail
    assert not Path("/escaped").exists()
    assert not Path("/usr/escaped").exists()


def test_a_design_that_takes_for_ever_to_compile_is_stopped(gate, box):
    bomb = "  genvar i; generate for (i = 0; i < 100000000; i = i + 1) begin : g wire w = a; end endgenerate\n"
    short = Limits(wall_s=5.0, cpu_s=1.0)
    assert simulate(gate, top(GATE_PORTS, bomb), box, short).reason in ("timeout", "compile_error", "crashed")
    memory = "  reg [63:0] m [0:2000000000]; initial m[0] = 1; assign out = m[a];\n"
    assert simulate(gate, top(GATE_PORTS, memory), box, short).reason in ("timeout", "compile_error", "crashed")


@pytest.mark.full
def test_of_156_solutions_151_pass_3_need_another_simulator_and_2_end_by_their_clock(checkout, tmp_path):
    data = os.environ.get("CROSSMESH_TEST_DATA")
    if not data:
        pytest.skip("needs verilog-eval: CROSSMESH_TEST_DATA is a folder with verilog_eval in it")
    command = [sys.executable, str(checkout / "jobs" / "evaluate.py"), "eval=verilog_eval", f"eval.path={data}/verilog_eval"]
    done = subprocess.run(
        [*command, "eval.only=references", "output=json"],
        capture_output=True,
        text=True,
        env={**os.environ, "CROSSMESH_STORAGE": str(tmp_path)},
        cwd=tmp_path,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert (said["passed"], said["failed"]) == (151, 0)
    assert [name.partition("_")[0] for name in said["excluded"]] == ["Prob082", "Prob099", "Prob141", "Prob151", "Prob156"]
    assert {name.partition("_")[0]: reason for name, reason in said["reasons"].items()} == {
        **dict.fromkeys(("Prob099", "Prob151", "Prob156"), "compile_error"),
        **dict.fromkeys(("Prob082", "Prob141"), "timeout"),
    }


def test_limits_give_a_busy_machine_more_wall_clock():
    limits = limits_of(EvalSpec(timeout_s=4.0))
    assert (limits.cpu_s, limits.wall_s) == (4.0, 40.0)
