"""A benchmark in the layout of RTLLM, made up: a folder for each problem, in folders by kind, with whatever else lies there."""

from pathlib import Path

ADDER = "module adder(input [3:0] a, input [3:0] b, output [4:0] sum);\n  assign sum = a + b;\nendmodule\n"
_ADDER_BENCH = """`timescale 1ns/1ps
module testbench;
  reg [3:0] a, b; wire [4:0] sum; integer i, error = 0;
  adder uut (.a(a), .b(b), .sum(sum));
  initial begin
    for (i = 0; i < 50; i = i + 1) begin
      a = $random; b = $random; #10;
      if (sum !== a + b) error = error + 1;
    end
    if (error == 0) begin
      $display("=========== Your Design Passed ===========");
    end else begin
      $display("=========== Test completed with %d /50 failures ===========", error);
    end
    $finish;
  end
endmodule
"""
_ROM = "module rom(input [1:0] at, output [7:0] value);\n  assign value = {6'd0, at} * 8'd3;\nendmodule\n"
_ROM_BENCH = """module rom_tb;
  reg [1:0] at; wire [7:0] value; reg [7:0] want [0:3]; integer i, error = 0;
  rom uut (at, value);
  initial begin
    $readmemh("test_data.dat", want);
    for (i = 0; i < 4; i = i + 1) begin at = i; #5; if (value !== want[i]) error = error + 1; end
    if (!error) $display("===========Your Design Passed===========");
    else $display("===========Error===========");
  end
endmodule
"""


def write_problems(root: Path) -> Path:
    """Two good problems; one whose reference is wrong, one that passes anything, one that never says so, one of another module."""
    _write(root / "Arithmetic" / "Adder" / "adder", ADDER.replace("module adder", "module verified_adder"), _ADDER_BENCH)
    _write(root / "Memory" / "rom", _ROM, _ROM_BENCH, {"test_data.dat": "00 03 06 09\n", "makefile": "vcs:\n", "wave.vcd": "old"})
    _write(root / "Other" / "broken", ADDER.replace("+", "-"), _ADDER_BENCH)
    _write(root / "Other" / "lenient", ADDER, _ADDER_BENCH.replace("!==", "!="))
    _write(root / "Other" / "silent", ADDER, _ADDER_BENCH.replace("Passed", "is fine"))
    _write(root / "Other" / "stray", ADDER.replace("adder", "subtractor"), _ADDER_BENCH)
    return root


def _write(folder: Path, reference: str, bench: str, more: dict[str, str] | None = None) -> None:
    folder.mkdir(parents=True)
    files = {"design_description.txt": f"Implement {folder.name}.\n", "testbench.v": bench, f"verified_{folder.name}.v": reference}
    for name, text in {**files, **(more or {})}.items():
        (folder / name).write_text(text)
