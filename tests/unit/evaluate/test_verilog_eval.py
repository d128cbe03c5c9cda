"""verilog-eval read from a folder: what is asked, what is judged with, and what a wrong folder is told."""

import pytest

from crossmesh.errors import InputError
from crossmesh.evaluate.problems import task_digest
from crossmesh.evaluate.screening import refusal
from crossmesh.evaluate.verilog_eval import load_verilog_eval
from verilog_eval_files import write_dataset


def test_spec_to_rtl_is_asked_as_it_stands(tmp_path):
    write_dataset(tmp_path / "verilog-eval" / "dataset_spec-to-rtl")
    problems = load_verilog_eval(str(tmp_path / "verilog-eval"), "spec_to_rtl", "Be brief.")
    assert [problem.id for problem in problems] == ["Prob001_gate", "Prob002_register", "Prob003_broken"]
    first = problems[0]
    assert first.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Implement Prob001_gate."})
    assert (first.module, first.split, first.header) == ("TopModule", "spec_to_rtl", "")
    assert "module TopModule" in first.reference
    assert "module RefModule" in first.support
    # The folder itself does as well, and the task is the same.
    assert task_digest(load_verilog_eval(str(tmp_path / "verilog-eval" / "dataset_spec-to-rtl"), "spec_to_rtl", "")) != task_digest(
        problems
    )
    again = load_verilog_eval(str(tmp_path / "verilog-eval" / "dataset_spec-to-rtl"), "spec_to_rtl", "Be brief.")
    assert task_digest(again) == task_digest(problems)


def test_code_complete_shows_how_the_module_begins(tmp_path):
    write_dataset(tmp_path / "dataset_code-complete-iccad2023", completing=True)
    first = load_verilog_eval(str(tmp_path), "code_complete", "")[0]
    (message,) = first.messages
    assert message["role"] == "user"
    assert "up to and including endmodule" in message["content"]
    assert message["content"].endswith("output out\n);")
    assert first.header.strip().startswith("module TopModule (")


def test_the_testbench_reports_with_the_nonce_and_nothing_that_a_design_could_print(tmp_path):
    problem = load_verilog_eval(str(write_dataset(tmp_path / "set")), "spec_to_rtl", "")[0]
    assert "Mismatches: %1d" not in problem.testbench
    assert problem.testbench.count('$value$plusargs("nonce=%s"') == 2  # The verdict, and the clock.
    assert refusal("module TopModule(input a); RefModule copy(a); endmodule", problem.testbench, problem.support) != ""
    assert refusal("module TopModule(input a); assign out = good1.out; endmodule", problem.testbench, problem.support) != ""
    assert refusal(problem.reference, problem.testbench, problem.support) == ""


@pytest.mark.parametrize("given", ["", "nowhere"])
def test_a_missing_folder_is_told_where_the_benchmark_comes_from(given, tmp_path):
    with pytest.raises(InputError, match=r"is not a folder.*git clone https://github\.com/NVlabs/verilog-eval.*eval\.path="):
        load_verilog_eval(given and str(tmp_path / given), "spec_to_rtl", "")


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no problems of eval\.variant=spec_to_rtl.*dataset_spec-to-rtl"):
        load_verilog_eval(str(tmp_path), "spec_to_rtl", "")
    complete = write_dataset(tmp_path / "complete", completing=True)
    with pytest.raises(InputError, match=r"holds the problems of eval\.variant=code_complete, not of spec_to_rtl"):
        load_verilog_eval(str(complete), "spec_to_rtl", "")
    plain = write_dataset(tmp_path / "plain")
    with pytest.raises(InputError, match=r"holds the problems of eval\.variant=spec_to_rtl, not of code_complete"):
        load_verilog_eval(str(plain), "code_complete", "")


def test_damaged_files_are_named(tmp_path):
    folder = write_dataset(tmp_path / "set")
    bench = folder / "Prob002_register_test.sv"
    bench.write_text(bench.read_text().replace("Mismatches", "Errors"))
    with pytest.raises(InputError, match=r"Prob002_register_test\.sv is not a testbench of release 2"):
        load_verilog_eval(str(folder), "spec_to_rtl", "")
    (folder / "Prob001_gate_ref.sv").unlink()
    with pytest.raises(InputError, match=r"Prob001_gate_ref\.sv cannot be read"):
        load_verilog_eval(str(folder), "spec_to_rtl", "")
