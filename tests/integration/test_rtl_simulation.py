"""Every kind of RTL problem against the real simulator: references pass, and nothing else does."""

import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crossmesh.config.training import RtlSpec
from crossmesh.data.rtl import HARD_KINDS, KINDS, RtlProblem, build_rtl, combinations
from crossmesh.data.rtl_bench import testbench_text as make_testbench
from crossmesh.data.rtl_design import Picker

pytestmark = pytest.mark.integration

Simulate = Callable[[Sequence[tuple[str, str]]], list[bool]]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """Return a function that says of each (module, testbench) whether it passes, two at a time."""

    def one(index: int, module: str, testbench: str) -> bool:
        source, program = tmp_path / f"{index}.v", tmp_path / f"{index}.vvp"
        source.write_text(f"{module}\n{testbench}")
        compiled = subprocess.run(["iverilog", "-g2012", "-s", "tb", "-o", program, source], capture_output=True, text=True, check=False)
        if compiled.returncode:
            return False
        output = subprocess.run(["vvp", program, "+nonce=n0nce"], capture_output=True, text=True, check=True, timeout=30).stdout
        return "PASS n0nce" in output.splitlines()

    def all_of(pairs: Sequence[tuple[str, str]]) -> list[bool]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda item: one(item[0], *item[1]), enumerate(pairs)))

    return all_of


@pytest.fixture(scope="module")
def heldout() -> tuple[RtlProblem, ...]:
    dataset = build_rtl(RtlSpec(train_rows=1, heldout_rows=32, hard_rows=12))
    return dataset.heldout + dataset.hard


def test_references_of_the_default_dataset_pass(simulate: Simulate) -> None:
    dataset = build_rtl(RtlSpec())
    problems = dataset.heldout + dataset.hard + dataset.train
    passed = simulate([(problem.solution, problem.testbench) for problem in problems])
    assert [problem.id for problem, good in zip(problems, passed, strict=True) if not good] == []


def test_references_of_every_combination_pass(simulate: Simulate) -> None:
    pairs, names = [], []
    for kind in (*KINDS, *HARD_KINDS):
        for params in combinations(kind):
            picker = Picker(f"every/{params}")
            design = kind.build(params, picker)
            pairs.append((design.module_text, make_testbench(design, picker)))
            names.append((kind.name, params))
    assert [name for name, good in zip(names, simulate(pairs), strict=True) if not good] == []


def test_the_module_of_another_combination_fails(simulate: Simulate) -> None:
    """Equal names and ports, another behaviour: the testbench must tell them apart."""
    pairs, names = [], []
    for kind in (*KINDS, *HARD_KINDS):
        picker = Picker("mutants")
        designs = [(params, kind.build(params, picker)) for params in combinations(kind)]
        for params, design in designs[:: max(1, len(designs) // 6)]:
            testbench = make_testbench(design, picker)
            others = [(other, wrong) for other, wrong in designs if wrong.declarations == design.declarations and other is not params]
            for other, wrong in others[:4]:
                pairs.append((wrong.module_text, testbench))
                names.append((kind.name, params, other))
    passed = simulate(pairs)
    assert len(pairs) > 150
    # On one bit, `a` minus `b` and `b` minus `a` are one function, as are sum and difference: not a fault of the testbench.
    alike = [name for name, good in zip(names, passed, strict=True) if good]
    assert all(kind == "subtractor" and params["width"] == 1 and params["borrow"] == "no" for kind, params, _ in alike)


def without_body(solution: str, line: str) -> str:
    """Keep the header of a module and give it another body."""
    header = solution.splitlines()[0].replace("output reg", "output")
    return f"{header}\n  {line}\nendmodule"


def test_designs_that_do_not_compute_anything_fail(simulate: Simulate, heldout: tuple[RtlProblem, ...]) -> None:
    lines = (
        "",
        "initial $finish;",
        'initial begin $display("PASS"); $display("PASS %s", "nonce"); $finish; end',
        'initial $display("PASS n0nce_");',
    )
    pairs = [(without_body(problem.solution, line), problem.testbench) for problem in heldout for line in lines]
    assert not any(simulate(pairs))


def constant(solution: str, value: str) -> str:
    """Give every output of a module one value."""
    declared = solution.splitlines()[0].split("output ", 1)[1].rstrip(");")
    outputs = re.sub(r"output |reg |\[\d+:0\] ", "", declared).split(", ")
    return without_body(solution, " ".join(f"assign {name} = {value};" for name in outputs))


def test_constant_outputs_fail(simulate: Simulate, heldout: tuple[RtlProblem, ...]) -> None:
    assert not any(
        simulate([(constant(problem.solution, value), problem.testbench) for problem in heldout for value in ("0", "~0", "1'bx")])
    )


def test_a_right_design_that_stops_early_fails(simulate: Simulate, heldout: tuple[RtlProblem, ...]) -> None:
    pairs = [(problem.solution.replace("endmodule", "  initial #5 $finish;\nendmodule"), problem.testbench) for problem in heldout]
    assert not any(simulate(pairs))
