"""Extraction of modules from answers, and what the judge refuses to simulate."""

import pytest

from crossmesh.data.verilog import extract, hollow, renamed
from crossmesh.evaluate.screening import refusal

GATE = "module gate(input a, input b, output y);\n  assign y = a & b;\nendmodule"
BENCH = """`timescale 1ns/1ps
module tb; reg [255:0] nonce; reg a, b; wire y;
  task automatic check(input want); if (y !== want) mismatches = mismatches + 1; endtask
  function [7:0] pick(input integer i); pick = i; endfunction
  golden model(.a(a));
  gate dut(.a(a), .b(b), .y(y));
  initial begin : stimulus #1; end
endmodule"""


@pytest.mark.parametrize(
    "answer",
    [
        f"Here it is:\n```verilog\n{GATE}\n```\nIt is an AND gate.",
        f"```systemverilog\n{GATE}\n```",
        f"```\n{GATE}\n```",
        f"Sure!\n```verilog\n{GATE}",
        f"<think>\n```verilog\nmodule gate(output y); assign y = 0; endmodule\n```\n</think>\n```verilog\n{GATE}\n```",
        f'This module has two inputs, and it\'s "simple" (see http://example.org).\n\n{GATE}\n\nThat is the module you wanted.',
        f"```bash\niverilog gate.v\n```\n{GATE}\n",
        f"```verilog {GATE}\n```",
        f"```{GATE}```",
        f"{GATE}\n```\nThis module is an AND gate.",
        f"First I think of module gate(input a); endmodule.\n</think>\n```verilog\n{GATE}\n```",
        f"```verilog\r\n{GATE}\r\n```".replace("\n", "\r\n"),
        f"<answer>```verilog\n{GATE}\n```</answer>",
        f"```verilog\nmodule gate_tb; gate dut(); endmodule\n```\nand the design:\n{GATE}",
        GATE.replace("module gate", "macromodule gate"),
    ],
    ids=[
        *(
            "prose",
            "systemverilog",
            "no language",
            "no closing fence",
            "think",
            "no fence",
            "other fence",
            "same line",
            "no language at all",
        ),
        *("only a closing fence", "end of thinking", "windows", "tags", "testbench in the fence", "macromodule"),
    ],
)
def test_the_module_is_found(answer):
    found = extract(answer, "gate")
    assert found.problem == ""
    assert found.design.replace("macromodule", "module").split() == GATE.split()


HEADER = "// An AND gate.\nmodule gate(input a, input b, output y);\n"


@pytest.mark.parametrize(
    "answer",
    [
        "  assign y = a & b;\nendmodule",
        "```verilog\n  assign y = a & b;\nendmodule\n```",
        "Here:\n```\n  assign y = a & b;\nendmodule",
        f"```verilog\n{GATE}\n```",
    ],
    ids=["body", "fenced body", "no closing fence", "whole module"],
)
def test_a_completion_goes_on_from_its_header_or_begins_anew(answer):
    found = extract(answer, "gate", HEADER)
    assert found.problem == ""
    assert found.design.split() == GATE.split()


def test_a_completion_may_bring_modules_of_its_own_and_may_be_cut():
    found = extract("  half h(a, y);\nendmodule\nmodule half(input a, output y); assign y = a; endmodule", "gate", HEADER)
    assert found.problem == ""
    assert found.design.count("endmodule") == 2
    assert extract("  assign y = a &", "gate", HEADER).problem == "truncated"
    assert extract("endmodule", "gate", HEADER).problem == "empty_module"


def test_hollow_modules_keep_their_ports_alone():
    design = "module other; endmodule\nmodule top #(parameter W = 2) ( // a; b\n input [W-1:0] a, output reg y);\n always y = a;\nendmodule"
    assert " ".join(hollow(design, "top").split()) == "module top #(parameter W = 2) ( input [W-1:0] a, output reg y); endmodule"
    assert extract(hollow(GATE, "gate"), "gate").problem == "empty_module"
    with pytest.raises(ValueError, match="no module absent"):
        hollow(design, "absent")


def test_renaming_replaces_whole_names_outside_strings():
    design = 'module Ref(input Ref_2); // Ref\n string s = "Ref"; Ref inner(); endmodule'
    assert " ".join(renamed(design, "Ref", "Top").split()) == 'module Top(input Ref_2); string s = "Ref"; Top inner(); endmodule'


def test_the_last_complete_definition_counts():
    first = GATE.replace("&", "|")
    cut = GATE.replace("&", "^").replace("endmodule", "")
    answer = f"```verilog\n{first}\n```\nCorrection:\n```verilog\n{GATE}\n```\nOr:\n```verilog\n{cut}"
    assert "a & b" in extract(answer, "gate").design
    assert "^" not in extract(answer, "gate").design


def test_needed_modules_come_along_and_a_testbench_of_the_models_own_does_not():
    inner = "module half(input a, output y); assign y = a; endmodule"
    outer = "module gate(input a, input b, output y); wire w; half u(.a(a), .y(w)); assign y = w & b; endmodule"
    own = 'module tb; gate dut(); initial $display("PASS"); endmodule'
    for answer in (
        f"```verilog\n{inner}\n{outer}\n{own}\n```",
        f"```verilog\n{outer}\n```\n```verilog\n{own}\n```\n```verilog\n{inner}\n```",
    ):
        design = extract(answer, "gate").design
        assert "module half" in design
        assert "module tb" not in design
        assert refusal(design, BENCH) == ""


def test_declarations_between_modules_of_a_fence_are_kept():
    answer = f"```verilog\ntypedef enum logic [1:0] {{A, B}} state_t;\n{GATE}\nmodule tb; initial begin"
    design = extract(answer, "gate").design
    assert design.startswith("typedef enum")
    assert "tb" not in design


def test_comments_never_decide():
    answer = (
        "```verilog\n// module gate(input a); endmodule\n/* endmodule */\n"
        + GATE.replace("assign", "// endmodule $finish `include\n  assign")
        + "\n```"
    )
    found = extract(answer, "gate")
    assert refusal(found.design, BENCH) == ""
    assert found.design.count("endmodule") == 1


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("I cannot do that.", "no_module"),
        ("", "no_module"),
        ("This module is simple; the module gate is an and gate.", "no_module"),
        (f"```verilog\n{GATE.replace('endmodule', '')}", "truncated"),
        (f"<think>{GATE}", "no_module"),
        (GATE.replace("gate", "and_gate"), "wrong_module"),
        ("module gate(input a, output y); endmodule", "empty_module"),
        ("module gate #(parameter W = 1) (input a, output y);\n  wire w; // assign y = a;\nendmodule", "empty_module"),
    ],
)
def test_answers_without_a_design_say_which_kind(answer, problem):
    assert extract(answer, "gate").problem == problem


@pytest.mark.parametrize(
    "body",
    [
        "initial $finish;",
        "initial $stop;",
        'initial $system("id");',
        'initial $dumpfile("x.vcd");',
        'initial $fdisplay(1, "PASS");',
        "initial $assertoff;",
        'initial $display("%s", tb.nonce);',
        'initial $display("%s", \\tb .nonce);',
        "initial \\check (0);",
        "initial \\model.y = 0;",
        'parameter S = "\\\\", T = "`include x";',
        'parameter S = "a\\\nb";',
        "wire \\a;b ; assign y = a;",
        "assign y = a \\ & b;",
        'reg [255:0] n; initial if ($value$plusargs("nonce=%s", n)) $display("PASS %0s", n);',
        'reg x; initial x = $test$plusargs("nonce");',
        'integer f; initial f = $fopen("/etc/passwd");',
        'reg [7:0] m [0:3]; initial $readmemh("/etc/passwd", m);',
        '`include "/etc/passwd"',
        "`define X 1\nassign y = `X;",
        "initial $root.tb.mismatches = 0;",
        "assign y = tb.want;",
        "assign y = \\tb .want;",
        "assign y = model.y;",
        "wire [3:0] w; assign y = model.grid[1].y;",
        "initial check(0);",
        "initial #1 check;",
        "assign y = pick(1);",
        "assign y = stimulus.secret;",
        "wire x = $unit::y;",
        'parameter S = "open;',
        'parameter S = """a""";',
        "assign y = `` ;",
        "assign y = a \x00 b;",
    ],
)
def test_what_reaches_for_the_judge_is_refused(body):
    design = extract(f"```verilog\nmodule gate(input a, input b, output y);\n{body}\nassign y = a & b;\nendmodule\n```", "gate").design
    assert refusal(design, BENCH) != ""


def test_a_design_cannot_be_made_of_what_it_is_compared_with():
    reference = "module golden_ref(input a, input b, output y); wire state; function f; endfunction assign y = a & b; endmodule"
    copied = extract(GATE.replace("assign y = a & b;", "golden_ref u(a, b, y);"), "gate").design
    assert "golden_ref" in refusal(copied, BENCH, reference)
    assert refusal(copied, BENCH) == ""
    # Names inside the reference are out of reach, so they are free.
    own = extract(
        GATE.replace("assign y = a & b;", "wire state; function f(input c); f = c; endfunction assign y = f(a & b);"), "gate"
    ).design
    assert refusal(own, BENCH, reference) == ""


@pytest.mark.parametrize(
    "body",
    [
        "assign y = a & b;",
        "localparam W = $clog2(8); assign y = $signed(a) >>> 1;",
        "wire [15:0] w = 16'hDEAD_bEEf; assign y = w[3] ? 1'b1 : '0;",
        "struct packed {logic hi; logic lo;} pair; assign pair.hi = a; assign y = pair.hi & b;",
        "half u [1:0] (.a({a, b}), .y(y));",
        "(* keep *) reg r; always @(*) r = a; assign y = r;",
        'generate if ("x" == "y") begin : g assign y = a; end endgenerate assign y = a;',
        "always_comb begin : named y = a; end",
        'initial $display("PASS %0d at %m\\n \\"quoted\\"", a); assign y = a;',
        'always @(a) begin $monitor("%b", a); $strobe("x"); $write("\\t", $time); $timeformat(-9, 2, " ns", 10); end assign y = a;',
        "real r; integer i; initial begin r = $sqrt(2.0) + $pow(2.0, 3) + $itor(3); i = $rtoi($floor(r)) + $random % 4; end assign y = a;",
        'always @(*) assert (a !== 1\'bx) else $error("a is %b", a); assign y = a;',
        'always @(*) assert (a) $info("one"); else begin $warning("none"); end assign y = a;',
        'initial if ($bits(a) != 1) $fatal(1, "width"); assign y = a;',
        "wire \\data[0] ; assign \\data[0] = a; assign y = \\data[0] & b;",
        "wire \\u1.n-2+x , \\plain ; assign \\u1.n-2+x = a; assign plain = b; assign y = \\u1.n-2+x & \\plain ;",
        "reg [7:0] q [$]; wire \\module ; assign \\module = a; assign y = \\module ;",
        "wire [63:0] w = $realtobits(1.5); assign y = $countones(w) == 3 & $isunknown(a) | $onehot(w);",
    ],
)
def test_ordinary_designs_are_not_refused(body):
    design = extract(
        f"```verilog\n`timescale 1ns/1ps\n`default_nettype none\nmodule gate(input a, input b, output y);\n{body}\nendmodule\n```", "gate"
    )
    assert design.problem == ""
    assert refusal(design.design, BENCH) == ""
