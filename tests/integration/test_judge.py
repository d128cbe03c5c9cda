"""The judge with a real simulator: right answers pass, wrong and hostile ones do not."""

from dataclasses import replace

import pytest

from crossmesh.config.evaluation import EvalSpec
from crossmesh.config.training import DataSpec, RtlSpec
from crossmesh.evaluate.judge import _SCRIPT, judge, judge_all, judge_references, limits_of, simulator_version
from crossmesh.evaluate.own_problems import load_problems
from crossmesh.evaluate.problems import Problem
from crossmesh.evaluate.sandbox import Limits, open_sandbox
from crossmesh.evaluate.tasks import load_task
from own_problem_files import ADDER, write_problems

pytestmark = pytest.mark.integration

BENCH = """`timescale 1ns/1ps
module tb;
  reg a, b; wire y; integer wrong = 0; integer i; string nonce;
  gate dut(.a(a), .b(b), .y(y));
  task report; if (!wrong && $value$plusargs("nonce=%s", nonce)) $display("PASS %s", nonce); else $display("FAIL %0d", wrong); endtask
  initial begin
    for (i = 0; i < 4; i = i + 1) begin {a, b} = i[1:0]; #1; if (y !== (a & b)) wrong = wrong + 1; end
    report; $finish(0);
  end
endmodule
"""
RIGHT = "module gate(input a, input b, output y);\n  assign y = a & b;\nendmodule\n"
PROBLEM = Problem("and", ({"role": "user", "content": "An AND gate named gate."},), RIGHT, BENCH, "heldout", "gate")
LIMITS = Limits(wall_s=5.0)


@pytest.fixture(scope="module")
def box():
    return open_sandbox("bubblewrap")


def body(text):
    return f"```verilog\nmodule gate(input a, input b, output y);\n{text}\nendmodule\n```"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (f"```verilog\n{RIGHT}```", "passed"),
        (f"An AND gate:\n```verilog\n{RIGHT}", "passed"),
        (RIGHT, "passed"),
        (body("reg r; always @(*) r = a & b; assign y = r;"), "passed"),
        (body("assign y = a | b;"), "mismatch"),
        (body("reg r; assign y = r;"), "mismatch"),
        (body("assign y = 1'bz;"), "mismatch"),
        (body("assign y = a &;"), "compile_error"),
        (body("nowhere u(a, b, y);"), "compile_error"),
        (body('initial $display("Mismatches: 0 in 4 samples"); assign y = a & b;'), "passed"),
        (body('always @(*) $write("a=%b", a); assign y = a & b;'), "passed"),  # The testbench's word then ends a line of the design's.
        (body('always @(*) assert (y === (a & b)) else $error("%b", y); assign #0 y = a & b;'), "passed"),
        (body("wire \\w[0] ; assign \\w[0] = a; assign y = \\w[0] & b;"), "passed"),
        (body("integer i; initial i = $rtoi($sqrt(16.0)); assign y = a & b;"), "passed"),
        ("module gate(input a, output y); endmodule", "empty_module"),
        (body("assign y = a & b;").replace("gate", "and_gate"), "wrong_module"),
        ("It is easy.", "no_module"),
        # An oscillation within one instant, and a loop that never yields.
        (body("reg r = 0; always @(r or a) r <= ~r; assign y = r;"), "timeout"),
        (body("reg r = 0; assign y = r; initial forever r = ~r;"), "timeout"),
    ],
)
def test_verdicts(box, answer, reason):
    verdict = judge(PROBLEM, answer, box, Limits(wall_s=1.5) if reason == "timeout" else LIMITS)
    assert verdict.reason == reason, verdict
    assert verdict.passed == (reason == "passed")


ATTACKS = {
    "calls the testbench's own report": "initial #3 report;",
    "clears the mismatches": "initial #3 tb.wrong = -4;",
    "prints the line with the nonce": 'string n; initial if ($value$plusargs("nonce=%s", n)) $display("PASS %s", n);',
    "reads the answer": "assign y = tb.a & tb.b;",
    "ends the simulation": "initial $finish;",
    "reads a host file": 'integer f; initial f = $fopen("/etc/passwd", "r");',
    "loads a host file": 'reg [7:0] m [0:9]; initial $readmemh("/etc/passwd", m);',
    "includes a host file": '`include "/etc/passwd"',
    "hides in an escaped name": "initial #3 \\report ;",
    "hides behind a comment": "initial #3 /* */ report/**/;",
}


PRINTED = {
    "the benchmark's line": 'initial $display("Mismatches: 0 in 100 samples"); final $display("Mismatches: 0 in 100 samples");',
    "a pass": 'initial begin $display("PASS"); $display("PASS 0123456789abcdef"); $display("\\nPASS %m\\n"); end',
    "a pass at the end": 'final begin $display("PASS"); $display("Your Design Passed"); end',
    "over the testbench's line": 'initial #4 $write("PASS \\r"); initial #4 $monitor("PASS"); initial #4 $strobe("PASS 4");',
    "and ends it": 'initial #1 $fatal(0, "PASS");',
    "and asserts": 'initial assert (1) $display("PASS"); else $error("FAIL");',
}


@pytest.mark.parametrize("printed", PRINTED)
def test_what_a_wrong_design_prints_never_makes_it_pass(box, printed):
    verdict = judge(PROBLEM, body(f"assign y = $time < 2 ? a & b : 1'b1; {PRINTED[printed]}"), box, LIMITS)
    assert verdict.reason == ("crashed" if "$fatal" in PRINTED[printed] else "mismatch"), verdict


def test_a_design_that_ends_the_simulation_by_an_error_does_not_pass_while_it_is_right(box):
    report = BENCH.partition("task report; ")[2].partition(" endtask")[0]
    final = BENCH.replace("    report; $finish(0);\n  end", "  end\n  final " + report)
    problem = replace(PROBLEM, testbench=final)
    assert judge(problem, RIGHT, box, LIMITS).passed
    assert judge(problem, body("assign y = $time < 2 ? a & b : 1'b1; initial #1 $fatal;"), box, LIMITS).reason == "crashed"


def test_a_flood_of_prints_is_stopped(box):
    assert judge(PROBLEM, body('initial forever $display("PASS");'), box, LIMITS).reason in ("output_limit", "timeout")


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused_before_they_run(box, attack):
    assert judge(PROBLEM, body(ATTACKS[attack]), box, LIMITS).reason == "refused"


def raw(box, design, limits=LIMITS):
    """Run a design past the screening, as if that had missed it."""
    return box.run(["sh", "-c", _SCRIPT, "n0nce"], {"testbench.sv": BENCH, "support.sv": "", "design.sv": design}, limits)


@pytest.mark.parametrize("open_call", ['$fopen("/etc/passwd", "r")', '$fopen("/usr/lib/os-release", "w")', '$fopen("/escaped", "w")'])
def test_the_sandbox_holds_where_screening_misses_a_file(box, open_call):
    outcome = raw(box, RIGHT.replace("assign", f'integer f; initial begin f = {open_call}; $display("fd=%0d", f); end assign'))
    # vvp ends with 0 although the file was refused: what it printed is what counts.
    assert outcome.returncode == 0
    assert "fd=0" in outcome.output


def test_the_sandbox_holds_where_screening_misses_an_include_or_a_memory_file(box):
    included = raw(box, '`include "/etc/passwd"\n' + RIGHT)
    assert included.returncode == 97
    assert "root:" not in included.output
    loaded = raw(
        box, RIGHT.replace("assign", 'reg [63:0] m [0:9]; initial begin $readmemh("/etc/passwd", m); $display("m=%s", m[0]); end assign')
    )
    assert "root" not in loaded.output
    assert "m=" in loaded.output


def test_the_sandbox_holds_where_screening_misses_a_flood(box):
    flood = RIGHT.replace("assign", 'initial forever $display("PASS n0nce"); assign')
    outcome = raw(box, flood, Limits(wall_s=20.0))
    assert outcome.stopped == "output_limit"
    assert outcome.seconds < 15


def test_a_memory_flood_is_not_a_pass(box):
    verdict = judge(PROBLEM, body("reg [63:0] q [$]; initial forever q.push_back(1); assign y = a & b;"), box, Limits(memory_mib=128))
    assert verdict.reason == "crashed"
    assert "bad_alloc" in verdict.detail


def test_verdicts_keep_the_order_of_the_answers_and_equal_ones_are_simulated_once(box):
    answers = [(PROBLEM, f"// {index % 6}\n" + (RIGHT if index % 3 else body("assign y = 0;"))) for index in range(12)]
    seen = []
    verdicts = judge_all(answers, box, LIMITS, 2, lambda done, total: seen.append((done, total)))
    assert [verdict.passed for verdict in verdicts] == [bool(index % 3) for index in range(12)]
    assert seen == [(done, 6) for done in range(1, 7)]


def test_a_problem_whose_reference_fails_is_excluded_by_name(box):
    broken = replace(PROBLEM, id="broken", reference=RIGHT.replace("&", "|"))
    references = judge_references([PROBLEM, broken], box, LIMITS, 2)
    assert references.usable == (replace(PROBLEM, checks=1),)
    assert references.excluded == (("broken", "mismatch"),)


def test_every_reference_of_rtl_passes_and_no_hollow_module_does(box):
    spec = EvalSpec()
    problems = load_task(spec, DataSpec(rtl=RtlSpec(train_rows=1, heldout_rows=24, hard_rows=8), system_prompt="Be brief."))
    assert [problem.split for problem in problems] == ["heldout"] * 24 + ["hard"] * 8
    assert problems[0].messages[0] == {"role": "system", "content": "Be brief."}
    assert judge_references(problems, box, limits_of(spec), 2).excluded == ()
    hollow = [(p, p.reference[: p.reference.index(";") + 1] + "\nwire nothing = 1'b0;\nendmodule") for p in problems]
    assert {verdict.reason for verdict in judge_all(hollow, box, limits_of(spec), 2)} == {"mismatch"}


def test_ones_own_problems_are_judged_by_their_own_words(box, tmp_path):
    write_problems(tmp_path)
    problems = load_problems(str(tmp_path), EvalSpec().success_text, "")
    references = judge_references(problems, box, LIMITS, 2)
    assert [problem.id for problem in references.usable] == ["adder", "rom"]
    reasons = dict(references.left_out)
    assert {name: reason.partition(":")[0] for name, reason in reasons.items()} == {
        "broken": "mismatch",
        "lenient": "passes_hollow",
        "silent": "bad_files",
        "stray": "bad_files",
    }
    assert "eval.success_text" in reasons["silent"]
    adder = references.usable[0]
    assert judge(adder, ADDER, box, LIMITS).passed
    wrong = ADDER.replace("a + b", "a - b")
    for printed in ("", 'initial $display("Your Design Passed");', 'final $display("===== Your Design Passed =====");'):
        verdict = judge(adder, wrong.replace("endmodule", f"{printed}\nendmodule"), box, LIMITS)
        assert verdict.reason == "mismatch", verdict


def test_the_simulator_is_named_for_the_record():
    assert simulator_version().startswith("Icarus Verilog")
