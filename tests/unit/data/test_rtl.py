import hashlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossmesh.config.training import RtlSpec
from crossmesh.data import rtl
from crossmesh.data.rtl import HARD_KINDS, KINDS, RtlProblem, build_rtl, combinations, split_combinations
from crossmesh.data.rtl_bench import input_vectors
from crossmesh.data.rtl_design import Picker, Port, port_groups
from crossmesh.errors import InputError
from crossmesh.files import canonical_json


@pytest.fixture(scope="module")
def default() -> tuple[tuple[RtlProblem, ...], ...]:
    dataset = build_rtl(RtlSpec())
    return dataset.train, dataset.heldout, dataset.hard


def check_disjoint(train: tuple[RtlProblem, ...], others: tuple[RtlProblem, ...]) -> None:
    prompts, modules = {problem.prompt for problem in train}, {problem.solution for problem in train}
    shown = {(problem.kind, problem.params) for problem in train}
    for problem in others:
        assert problem.prompt not in prompts
        assert problem.solution not in modules
        assert (problem.kind, problem.params) not in shown


def test_sizes_and_even_kinds(default: tuple[tuple[RtlProblem, ...], ...]) -> None:
    train, heldout, hard = default
    assert (len(train), len(heldout), len(hard)) == (600, 48, 12)
    assert set(Counter(problem.kind for problem in train).values()) == {50}
    assert set(Counter(problem.kind for problem in heldout).values()) == {4}
    assert set(Counter(problem.kind for problem in hard).values()) == {1, 2}
    # Any first part is even, too: `data.max_rows` keeps every kind.
    assert len({problem.kind for problem in train[:12]}) == 12


def test_no_heldout_text_in_training(default: tuple[tuple[RtlProblem, ...], ...]) -> None:
    train, heldout, hard = default
    check_disjoint(train, heldout + hard)
    assert not {problem.kind for problem in hard} & {problem.kind for problem in train}


def test_no_two_problems_are_alike(default: tuple[tuple[RtlProblem, ...], ...]) -> None:
    problems = [problem for split in default for problem in split]
    for texts in (
        [problem.prompt for problem in problems],
        [problem.solution for problem in problems],
        [problem.id for problem in problems],
    ):
        assert len(set(texts)) == len(texts)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31), train=st.integers(12, 120), heldout=st.integers(1, 64), hard=st.integers(0, 18))
def test_no_heldout_text_in_training_for_any_seed(seed: int, train: int, heldout: int, hard: int) -> None:
    dataset = build_rtl(RtlSpec(train, heldout, hard, seed))
    check_disjoint(dataset.train, dataset.heldout + dataset.hard)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_each_value_of_a_heldout_combination_occurs_in_training(seed: int) -> None:
    for kind in KINDS:
        train, heldout = split_combinations(kind, seed)
        assert len(heldout) >= 3
        assert sorted(map(canonical_json, train + heldout)) == sorted(map(canonical_json, combinations(kind)))
        for params in heldout:
            assert params not in train
            for axis, value in params.items():
                assert any(other[axis] == value for other in train)


def test_the_dataset_is_pinned(default: tuple[tuple[RtlProblem, ...], ...]) -> None:
    # A change here changes what every earlier run trained on and was judged by.
    text = canonical_json([[problem.prompt, problem.solution, problem.testbench, problem.split] for split in default for problem in split])
    assert hashlib.sha256(text.encode()).hexdigest() == "54bdfac1fdcfdf22ff1ed50a957056288a5ecd6324d07c8c8d3540608712e421"


def test_seeds_differ_and_repeat() -> None:
    spec = RtlSpec(train_rows=16, heldout_rows=4, hard_rows=0, seed=1)
    assert build_rtl(spec) == build_rtl(spec)
    assert build_rtl(spec) != build_rtl(RtlSpec(train_rows=16, heldout_rows=4, hard_rows=0, seed=2))


def test_more_rows_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtl, "HARD_KINDS", tuple(kind for kind in HARD_KINDS if kind.name == "parity"))
    with pytest.raises(InputError, match=r"data\.rtl\.hard_rows=5000 is more than the generator can make .* Allowed: up to \d+"):
        build_rtl(RtlSpec(train_rows=1, heldout_rows=1, hard_rows=5000))


def test_every_name_in_a_prompt_is_a_port(default: tuple[tuple[RtlProblem, ...], ...]) -> None:
    for split in default:
        for problem in split:
            header = problem.solution.splitlines()[0]
            name = header.removeprefix("module ").split("(")[0]
            assert f" {name}" in problem.prompt
            for port in header.split("(", 1)[1].rstrip(");").replace("input ", "").replace("output ", "").replace("reg ", "").split(", "):
                assert port.split("] ")[-1] in problem.prompt


def test_testbench_passes_on_no_condition_but_zero_mismatches(default: tuple[tuple[RtlProblem, ...], ...]) -> None:
    for split in default:
        for problem in split:
            assert problem.testbench.count("PASS") == 1
            assert 'if (mismatches == 0 && $value$plusargs("nonce=%s", nonce)) $display("PASS %s", nonce);' in problem.testbench
            assert "!==" in problem.testbench
            assert "!= " not in problem.testbench


def test_few_input_bits_are_tested_exhaustively_and_many_with_corners() -> None:
    few = input_vectors((Port("a", 3), Port("b", 2)), Picker("key"))
    assert sorted(few) == [(a, b) for a in range(8) for b in range(4)]
    many = input_vectors((Port("a", 8), Port("b", 8)), Picker("key"))
    assert {(0, 0), (255, 255), (0, 255), (255, 0)} <= set(many)
    assert sum(a == b for a, b in many) > 10
    assert sum(a == b + 1 for a, b in many) > 10
    assert sum(b == a + 1 for a, b in many) > 10


def test_ports_are_grouped_by_width_in_order() -> None:
    ports = (Port("clk"), Port("en"), Port("a", 4), Port("b", 4), Port("s"))
    assert port_groups(ports) == ["clk, en", "[3:0] a, b", "s"]


def test_kinds_have_distinct_names() -> None:
    names = [kind.name for kind in (*KINDS, *HARD_KINDS)]
    assert len(set(names)) == len(names) == 20
