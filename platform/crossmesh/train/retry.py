"""Whether a run that stopped is started again by itself: pure decisions on values, taken by the driver (`launch.py`).

Ray Train's own retries stay off: it would start again after an error of the user, and from checkpoints of its own bookkeeping.
"""

from dataclasses import dataclass, replace
from enum import Enum

from crossmesh.config.training import RetrySpec


class FailureKind(Enum):
    """What Ray saw of an attempt that did not end by itself."""

    START = "the workers could not be started"
    DIED = "a worker died"
    PREEMPTED = "a node was taken back"
    RAISED = "a worker raised an error"


@dataclass(frozen=True)
class Failure:
    """What Ray says of an attempt that failed; returned by the trainer, so plain values."""

    kind: FailureKind
    text: str
    """Ray's own story, for the log."""


class Ending(Enum):
    """How an attempt ended, whoever was to blame."""

    DONE = "done"
    REFUSED = "an error of the user, or of the run itself: the same again would fail the same"
    BUG = "an error of the code"
    DIED = "a fault of the infrastructure"
    PREEMPTED = "taken back with notice"


def judge(failure: Failure | None, *, refused: bool, preempted: bool, node_lost: bool) -> Ending:
    """Say how an attempt ended.

    Args:
        failure: what Ray saw; None when all workers returned.
        refused: a worker wrote down a `CrossmeshError`.
        preempted: a worker says that it stopped because its node is taken back.
        node_lost: a node that a worker ran on is gone. When one is, the other workers fail in a collective with errors of Python, often
            before Ray knows; so a lost node outweighs what they say.
    """
    if refused:
        return Ending.REFUSED
    if preempted or (failure is not None and failure.kind is FailureKind.PREEMPTED):
        return Ending.PREEMPTED
    if failure is None:
        return Ending.DONE
    return Ending.BUG if failure.kind is FailureKind.RAISED and not node_lost else Ending.DIED


def retries_left(ending: Ending, left: RetrySpec) -> RetrySpec | None:
    """Return what is left of the retries once a run that ended so is started again; None: it is not."""
    if ending is Ending.DIED and left.failures:
        return replace(left, failures=left.failures - 1)
    if ending is Ending.PREEMPTED and left.preemptions:
        return replace(left, preemptions=left.preemptions - 1)
    return None


def retry_text(ending: Ending, failure: Failure | None, left: RetrySpec) -> str:
    """Say why a run is started again, and how often more it would be: `left` is what `retries_left` returned."""
    if ending is Ending.PREEMPTED:
        return (
            f"The node was taken back. The run is started again from its checkpoint ({_times(left.preemptions)} left: retry.preemptions)."
        )
    cause = failure.kind.value if failure is not None and failure.kind is not FailureKind.RAISED else "a node died"
    return f"The attempt failed: {cause}. It is started again from its checkpoint ({_times(left.failures)} left: retry.failures)."


def _times(count: int) -> str:
    return "1 retry" if count == 1 else f"{count} retries"
