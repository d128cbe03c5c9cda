"""A small folder in the form of verilog-eval, written for these tests: a gate, a register, and a problem whose own solution is wrong."""

from pathlib import Path

GATE_PORTS = "(\n  input a,\n  input b,\n  output out\n);\n"
REGISTER_PORTS = "(\n  input clk,\n  input a,\n  input b,\n  output reg out\n);\n"
GATE = "  assign out = a & b;\n"
REGISTER = "  always @(posedge clk) out <= a ^ b;\n"

_BENCH = """`timescale 1 ps/1 ps

module stimulus_gen (
	input clk,
	output reg a,
	output reg b
);
	initial begin
		repeat(50) @(posedge clk, negedge clk) {{a, b}} <= $urandom;
		#1 $finish;
	end
endmodule

module tb();

	typedef struct packed {{
		int errors;
		int clocks;
	}} stats;

	stats stats1;
	reg clk=0;
	initial forever
		#5 clk = ~clk;

	logic a, b, out_ref, out_dut;
	initial begin
		$dumpfile("wave.vcd");
		$dumpvars(1, a, b, out_ref, out_dut);
	end
	stimulus_gen stim1 (.clk, .*);
	RefModule good1 ({clock}.a, .b, .out(out_ref));
	TopModule top_module1 ({clock}.a, .b, .out(out_dut));
	wire tb_match = ({{ out_ref }} === ({{ out_ref }} ^ {{ out_dut }} ^ {{ out_ref }}));
	final begin
		$display("Mismatches: %1d in %1d samples", stats1.errors, stats1.clocks);
	end
	always @(posedge clk, negedge clk) begin
		stats1.clocks++;
		if (!tb_match) stats1.errors++;
	end
   initial begin
     #1000000
     $display("TIMEOUT");
     $finish();
   end
endmodule
"""


def bench(*, clocked: bool) -> str:
    """A testbench as verilog-eval's are."""
    return _BENCH.format(clock=".clk, " if clocked else "")


def write_dataset(folder: Path, *, completing: bool = False) -> Path:
    """Write the three problems into `folder`; with `completing`, as code to be completed."""
    folder.mkdir(parents=True)
    cases = {
        "Prob001_gate": (GATE_PORTS, GATE, bench(clocked=False)),
        "Prob002_register": (REGISTER_PORTS, REGISTER, bench(clocked=True)),
        # Its testbench connects a port that its own solution does not have.
        "Prob003_broken": (GATE_PORTS, GATE, bench(clocked=True)),
    }
    for name, (ports, body, testbench) in cases.items():
        header = f"\nmodule TopModule {ports}"
        prompt = f"\nImplement {name}.\n{header if completing else ''}\n"
        (folder / f"{name}_prompt.txt").write_text(prompt)
        (folder / f"{name}_ref.sv").write_text(f"\nmodule RefModule {ports}\n{body}\nendmodule\n")
        (folder / f"{name}_test.sv").write_text(testbench)
        if completing:
            (folder / f"{name}_ifc.txt").write_text(header)
    return folder
