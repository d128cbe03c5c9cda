"""The retry policy on values: how an attempt ended, whether it is started again, and what the person is told."""

import pytest

from crossmesh.config.training import RetrySpec
from crossmesh.train.retry import Ending, Failure, FailureKind, judge, retries_left, retry_text

RAISED, DIED, START, PREEMPTED = (
    Failure(kind, "story") for kind in (FailureKind.RAISED, FailureKind.DIED, FailureKind.START, FailureKind.PREEMPTED)
)


@pytest.mark.parametrize(
    ("failure", "seen", "ending"),
    [
        (None, "", Ending.DONE),
        (DIED, "", Ending.DIED),
        (START, "", Ending.DIED),
        (RAISED, "", Ending.BUG),
        # The death of a node makes the workers that are left raise, before Ray knows why.
        (RAISED, "node_lost", Ending.DIED),
        (PREEMPTED, "", Ending.PREEMPTED),
        # A worker that stored its checkpoint in time returns, or dies with its node.
        (None, "preempted", Ending.PREEMPTED),
        (DIED, "preempted", Ending.PREEMPTED),
        # What the user has to mend is never tried again, whatever happened beside it.
        (None, "refused", Ending.REFUSED),
        (DIED, "refused", Ending.REFUSED),
        (RAISED, "refused node_lost preempted", Ending.REFUSED),
    ],
)
def test_who_is_to_blame(failure: Failure | None, seen: str, ending: Ending) -> None:
    facts = {name: name in seen.split() for name in ("refused", "preempted", "node_lost")}
    assert judge(failure, **facts) is ending


@pytest.mark.parametrize("ending", [Ending.DONE, Ending.REFUSED, Ending.BUG])
def test_errors_of_user_and_code_are_never_tried_again(ending: Ending) -> None:
    assert retries_left(ending, RetrySpec(failures=9, preemptions=9)) is None


def test_faults_and_preemptions_are_counted_apart_and_run_out() -> None:
    left: RetrySpec | None = RetrySpec(failures=2, preemptions=1)
    assert left is not None
    for ending, wanted in ((Ending.DIED, (1, 1)), (Ending.PREEMPTED, (1, 0)), (Ending.DIED, (0, 0))):
        left = retries_left(ending, left)
        assert left is not None
        assert (left.failures, left.preemptions) == wanted
    assert retries_left(Ending.DIED, left) is None
    assert retries_left(Ending.PREEMPTED, left) is None


def test_the_person_is_told_why_and_how_often_more() -> None:
    assert "a worker died" in retry_text(Ending.DIED, DIED, RetrySpec(failures=1))
    assert "(1 retry left: retry.failures)" in retry_text(Ending.DIED, DIED, RetrySpec(failures=1))
    assert "a node died" in retry_text(Ending.DIED, RAISED, RetrySpec(failures=0))
    assert "taken back" in retry_text(Ending.PREEMPTED, None, RetrySpec(preemptions=3))
    assert "(3 retries left: retry.preemptions)" in retry_text(Ending.PREEMPTED, None, RetrySpec(preemptions=3))
