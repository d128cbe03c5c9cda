"""Which small depths stand for a model, on counts that can be done by hand."""

from dataclasses import replace

import pytest

from crossmesh.models.families.registry import parse_architecture
from crossmesh.models.weights.random_weights import architecture_config
from crossmesh.plan.compilers.depths import keep_layers, small_depths, stretches

GEMMA_4_E2B = parse_architecture(architecture_config("gemma4_e2b"), "gemma4_e2b.json")


def test_the_longest_repetition_is_found_by_its_shortest_block() -> None:
    assert [(one.start, one.period, one.count) for one in stretches("SSSSSG" * 10)] == [(0, 6, 10)]
    assert [(one.start, one.period, one.count) for one in stretches("S" * 30)] == [(0, 1, 30)]
    # Gemma 3 1B: 26 layers end within a block.
    assert [(one.start, one.period, one.count) for one in stretches("SSSSSG" * 4 + "SS")] == [(0, 6, 4), (24, 1, 2)]
    assert [(one.start, one.period, one.count) for one in stretches("ABC")] == [(0, 3, 1)]
    assert stretches("") == ()


def test_sixty_layers_are_six_and_nine_times_what_six_more_add() -> None:
    depths = small_depths("SSSSSG" * 10)
    assert depths is not None
    assert [len(kept) for kept in depths.layers] == [6, 12]
    assert depths.extrapolate([100.0, 130.0]) == 100 + 9 * 30
    dense = small_depths("S" * 30)
    assert dense is not None
    assert [len(kept) for kept in dense.layers] == [2, 4]
    assert dense.extrapolate([10.0, 14.0]) == 10 + 14 * 4


def test_a_linear_figure_of_two_stretches_is_exact() -> None:
    kinds = [(layer, layer.kv_from) for layer in GEMMA_4_E2B.layers]
    depths = small_depths(kinds)
    assert depths is not None
    assert [len(kept) for kept in depths.layers] == [10, 15, 15]

    def figure(kept: tuple[int, ...]) -> float:
        return 7.0 + sum(5.0 if kinds[index][1] is None else 3.0 for index in kept)

    assert depths.extrapolate([figure(kept) for kept in depths.layers]) == pytest.approx(7 + 15 * 5 + 20 * 3)


def test_layers_that_stay_keep_whose_keys_and_values_they_use() -> None:
    depths = small_depths(GEMMA_4_E2B.layers)
    assert depths is not None
    small = keep_layers(GEMMA_4_E2B.layers, depths.layers[0])
    assert small is not None
    # Five own layers (10 to 14), then five that use the last sliding one's, which is now the fourth, or the global one's.
    assert [layer.kv_from for layer in small] == [None] * 5 + [3, 3, 3, 3, 4]
    assert keep_layers(GEMMA_4_E2B.layers, (0, 15)) is None


def test_nothing_is_cut_where_the_depths_would_be_the_model() -> None:
    assert small_depths("SSSS") is None
    assert small_depths("SSSSSG" * 2) is None
    assert small_depths("ABCDEFG") is None
    odd = replace(GEMMA_4_E2B.layers[0], window=7)
    assert small_depths([odd, *GEMMA_4_E2B.layers[1:5]]) is None
