"""What the paper's counts allow, recomputed by hand."""

import pytest

from crossmesh.paper.published import PAPER, Published, compare_published

TPU, GPU = PAPER


def test_the_papers_counts():
    # 0.6410 of 780 answers, 0.7949 of 156 problems.
    assert (TPU.right, TPU.solved, GPU.right, GPU.solved) == (500, 124, 544, 127)


def test_errors_of_the_kindest_and_the_least_kind_spread():
    # 500 right on 124 problems. Evenly: 4 with five and 120 with four, squares 2020. Unevenly: 94 with five, 30 with one, squares 2380.
    mean = 500 / 780
    evenly, unevenly = (((squares / 25 / 156 - mean**2) / 156) ** 0.5 for squares in (2020, 2380))
    assert TPU.errors == pytest.approx((evenly, unevenly))
    assert TPU.errors == pytest.approx((0.0262, 0.0357), abs=1e-4)
    # 544 on 127: 36 with five, 91 with four; 104 with five, one with two, 22 with one.
    mean = 544 / 780
    evenly, unevenly = (((squares / 25 / 156 - mean**2) / 156) ** 0.5 for squares in (36 * 25 + 91 * 16, 104 * 25 + 4 + 22))
    assert GPU.errors == pytest.approx((evenly, unevenly))


def test_the_papers_gap_is_open():
    allowed = compare_published(GPU, TPU)
    assert allowed.difference == pytest.approx(0.0564)
    narrow, wide = allowed.independent
    assert wide[0] < narrow[0] < 0 < narrow[1] < wide[1]
    assert wide == pytest.approx((-0.041, 0.154), abs=2e-3)
    # 44 problems with one right answer more and the others alike, against both spreads added.
    assert allowed.paired_errors[0] == pytest.approx(((44 / 25 / 156 - (44 / 780) ** 2) / 156) ** 0.5)
    assert allowed.paired_errors[1] == pytest.approx(TPU.errors[1] + GPU.errors[1])
    # Three problems more are solved; at best the others are the same ones.
    assert allowed.solved_p == pytest.approx(0.25)


def test_counts_that_do_not_fit_are_an_error():
    with pytest.raises(ValueError, match="do not fit"):
        _ = Published("x", 0.9, 0.5, 100, 5).errors
    with pytest.raises(ValueError, match="100 x 5 and 156 x 5"):
        compare_published(Published("x", 0.4, 0.5, 100, 5), TPU)


def test_spreads_at_the_ends():
    # All right on every solved problem: one way only.
    even, uneven = Published("x", 0.5, 0.5, 100, 5).errors
    assert even == uneven == pytest.approx((0.25 / 100) ** 0.5)
    even, uneven = Published("x", 0.1, 0.5, 100, 5).errors
    assert even == uneven == pytest.approx(((50 / 25 / 100 - 0.01) / 100) ** 0.5)
