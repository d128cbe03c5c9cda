from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossmesh.data.order import epoch_order, step_rows
from crossmesh.errors import InputError

SIZES = {"row_count": st.integers(1, 40), "batch_size": st.integers(1, 12), "steps": st.integers(0, 30), "seed": st.integers(0, 5)}


@given(**SIZES)
def test_every_epoch_is_a_permutation(row_count: int, batch_size: int, steps: int, seed: int) -> None:
    batches = step_rows(row_count, batch_size, steps, seed)
    assert [len(batch) for batch in batches] == [batch_size] * steps
    stream = list(chain.from_iterable(batches))
    epochs = [stream[start : start + row_count] for start in range(0, len(stream), row_count)]
    for epoch in epochs[:-1]:
        assert sorted(epoch) == list(range(row_count))
    assert all(len(set(epoch)) == len(epoch) for epoch in epochs)


@given(**SIZES, more=st.integers(0, 10))
def test_fewer_steps_are_a_prefix_of_more(row_count: int, batch_size: int, steps: int, seed: int, more: int) -> None:
    assert step_rows(row_count, batch_size, steps + more, seed)[:steps] == step_rows(row_count, batch_size, steps, seed)


@given(row_count=st.integers(1, 40), batch_size=st.integers(1, 6), scale=st.integers(1, 4), seed=st.integers(0, 5))
def test_batch_size_does_not_change_the_stream(row_count: int, batch_size: int, scale: int, seed: int) -> None:
    small = chain.from_iterable(step_rows(row_count, batch_size, 6 * scale, seed))
    large = chain.from_iterable(step_rows(row_count, batch_size * scale, 6, seed))
    assert list(small) == list(large)


def test_orders_are_pinned() -> None:
    # A change here changes what every earlier run trained on.
    assert step_rows(5, 3, 4, 0) == [[0, 1, 3], [4, 2, 1], [0, 2, 4], [3, 0, 4]]


def test_epochs_and_seeds_differ() -> None:
    orders = [tuple(epoch_order(100, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9


@pytest.mark.parametrize(("rows", "batch", "steps"), [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
def test_impossible_sizes(rows: int, batch: int, steps: int) -> None:
    with pytest.raises(InputError, match="is not possible"):
        step_rows(rows, batch, steps, 0)
