"""The masks of LoRA dropout: how much is kept, that nothing hangs together, and what they follow from."""

import numpy as np
import numpy.typing as npt
import pytest

from crossmesh.models.lora_masks import kept, mix, module_keys, module_words, scale, step_key, threshold, token_words

TOKENS, FEATURES = 512, 768
LOWBIAS32 = [0, 1753845952, 3507691905, 1734902346]
NAMES = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qkv"]


def mask(
    name: str = NAMES[0], step: int = 0, seed: int = 0, row_key: int = 12345, start: int = 0, probability: float = 0.3, first: int = 0
) -> npt.NDArray[np.bool_]:
    """What is kept of one row's tokens in one module at one step [TOKENS, FEATURES]."""
    positions = np.arange(start, start + TOKENS, dtype=np.uint32)
    tokens = token_words(np.full(TOKENS, row_key, np.uint32), positions)
    one, other = module_words(tokens, module_keys([name])[0] ^ step_key(seed, step))
    features = np.arange(first, first + FEATURES, dtype=np.uint32)
    return np.asarray(kept(one[:, None], other[:, None], features, threshold(probability)))


def correlation(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> float:
    """In standard deviations of what independent masks have."""
    return float(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1] * np.sqrt(one.size))


def test_the_mixing_function_is_the_published_one() -> None:
    # From a C program of lowbias32; a permutation has no two equal outputs.
    assert [int(word) for word in mix(np.array([0, 1, 2, 0xFFFFFFFF], np.uint32))] == LOWBIAS32
    assert len(np.unique(mix(np.arange(1 << 16, dtype=np.uint32)))) == 1 << 16


@pytest.mark.parametrize("probability", [0.05, 0.3, 0.5, 0.9])
def test_as_much_is_dropped_as_asked_for_in_every_token_and_feature(probability: float) -> None:
    kept_ = mask(probability=probability)
    deviation = np.sqrt(probability * (1 - probability))
    assert abs(kept_.mean() - (1 - probability)) < 4 * deviation / np.sqrt(kept_.size)
    for axis, others in ((0, TOKENS), (1, FEATURES)):
        z = (kept_.mean(axis=axis) - (1 - probability)) / deviation * np.sqrt(others)
        assert abs(z).max() < 5.0
        assert 0.85 < z.std() < 1.15  # neither clustered nor too even
    assert scale(probability) == pytest.approx(1 / (1 - probability), rel=2e-4)


def test_the_expected_value_is_that_of_no_dropout() -> None:
    assert scale(0.3) * (1 - threshold(0.3) / 65536) == pytest.approx(1.0, abs=1e-12)
    assert 0 < threshold(0.99999) < 65536  # something is kept always


@pytest.mark.parametrize(
    "other",
    [
        {"name": NAMES[1]},
        {"name": NAMES[3]},
        {"step": 1},
        {"step": 1 << 16},
        {"seed": 1},
        {"row_key": 12346},
        {"row_key": 12345 ^ 0x80000000},
        {"start": 1},
        {"start": TOKENS},
        {"first": 1},
        {"first": 2},
        {"first": FEATURES},
    ],
    ids=str,
)
def test_masks_of_another_module_step_seed_row_position_or_feature_have_nothing_in_common(other: dict[str, int | str]) -> None:
    assert abs(correlation(mask(), mask(**other))) < 4.0


def test_neighbours_within_a_mask_have_nothing_in_common() -> None:
    one = mask()
    for shift in (1, 2, 3, 7, 64, 128):
        assert abs(correlation(one[:-shift], one[shift:])) < 4.0
        assert abs(correlation(one[:, :-shift], one[:, shift:])) < 4.0
        assert abs(correlation(one[:-shift, :-shift], one[shift:, shift:])) < 4.0


def test_pairs_of_modules_and_steps_are_as_far_apart_as_by_chance() -> None:
    """Over many pairs the correlations themselves are standard normal."""
    masks = [mask(name, step) for name in NAMES for step in range(4)]
    found = [correlation(one, other) for index, one in enumerate(masks) for other in masks[:index]]
    assert abs(np.mean(found)) < 4 / np.sqrt(len(found))
    assert 0.85 < np.std(found) < 1.15
    assert np.max(np.abs(found)) < 5.0


def test_a_mask_is_a_function_of_what_it_is_of() -> None:
    assert np.array_equal(mask(), mask())
    assert np.array_equal(mask(first=5)[:, : FEATURES - 5], mask()[:, 5:])  # a rank's part of the features
    assert np.array_equal(mask(start=9)[: TOKENS - 9], mask()[9:])
