"""Kinds of memory at the peak, counted by hand on a step of a few blocks."""

from crossmesh.plan.compilers.allocations import Change, peak_by_kind

WEIGHTS, INPUT, KEPT, LOGITS, GRADIENT, AGAIN, COPY = range(7)
FORWARD, BACKWARD, UPDATE = 0, 1, 2
STEP = [
    Change(WEIGHTS, 100, FORWARD),
    Change(INPUT, 5, FORWARD),
    Change(KEPT, 30, FORWARD),
    Change(LOGITS, 50, FORWARD),
    Change(LOGITS, 0, FORWARD),
    Change(AGAIN, 60, BACKWARD),
    Change(GRADIENT, 7, BACKWARD),  # Most is held here: 100 + 5 + 30 + 60 + 7.
    Change(AGAIN, 0, BACKWARD),
    Change(KEPT, 0, BACKWARD),
    Change(COPY, 7, UPDATE),
    Change(COPY, 0, UPDATE),
    Change(GRADIENT, 0, UPDATE),
]


def test_the_peak_is_divided_by_who_made_a_block_and_for_how_long():
    assert peak_by_kind(STEP, {WEIGHTS: "weights"}) == {"weights": 100, "activations": 35, "gradients": 7, "temporaries": 60}


def test_what_is_freed_before_the_peak_is_not_in_it():
    larger = [*STEP[:3], Change(LOGITS, 90, FORWARD), *STEP[4:]]
    assert peak_by_kind(larger, {}) == {"activations": 135, "temporaries": 90}


def test_a_block_that_is_emptied_and_filled_again_counts_with_its_size_at_the_peak():
    """As FSDP does with gathered weights, whose storage stays."""
    changes = [Change(0, 40, 0), Change(0, 0, 0), Change(1, 10, 0), Change(0, 40, 1), Change(2, 3, 1), Change(0, 0, 1)]
    assert peak_by_kind(changes, {0: "gathered", 1: "weights"}) == {"gathered": 40, "weights": 10, "gradients": 3}


def test_nothing_recorded_is_nothing_held():
    assert peak_by_kind([], {}) == {}
