import pytest

from crossmesh.data.lengths import length_statistics
from crossmesh.errors import InputError


def test_statistics_of_known_lengths() -> None:
    statistics = length_statistics(list(range(1, 101)), limits=(50, 64, 100, 200))
    assert (statistics.count, statistics.total, statistics.mean, statistics.shortest, statistics.longest) == (100, 5050, 50.5, 1, 100)
    assert dict(statistics.percentiles)[50.0] == 50.5
    assert dict(statistics.percentiles)[99.0] == pytest.approx(99.01)
    # A row exactly at the limit is kept; limits beyond the first that keeps all say nothing more.
    assert statistics.kept == ((50, 0.5), (64, 0.64), (100, 1.0))


def test_no_rows() -> None:
    with pytest.raises(InputError, match="no rows to take lengths of"):
        length_statistics([])
