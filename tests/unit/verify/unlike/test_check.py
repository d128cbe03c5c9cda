"""The table of `check=unlike` passes only when each change shows exactly where it must."""

from crossmesh.verify.unlike.case import NOWHERE, Case, scopes
from crossmesh.verify.unlike.check import result_of


def test_a_row_passes_where_it_shows_exactly_where_it_must() -> None:
    assert Case("a", "science, system", scopes({"system", "science"})).passed
    assert Case("a", NOWHERE, scopes(())).passed
    assert not Case("a", "system", scopes({"science", "system"})).passed
    assert not Case("a", "science", scopes(())).passed
    assert not Case("a", "system", "system", wrong="losses apart").passed


def test_one_row_that_shows_elsewhere_fails_the_check_and_a_skipped_one_is_said() -> None:
    right = Case("a", "system", "system", {"loss_difference": 1e-6})
    skipped = Case("b", "system", "not tried", skipped="no GPU")
    assert result_of([right, skipped]).passed
    assert (result_of([right, skipped]).figures["skipped"], result_of([right, skipped]).figures["b"]["note"]) == (1, "no GPU")
    assert not result_of([right, Case("c", "refused", "exit code 0")]).passed
    far = Case("d", "system", "system", {"loss_difference": 1e-3})
    assert not result_of([right, far]).passed
