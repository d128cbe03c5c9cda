"""What Ray's autoscaler says of nodes that it could not start: which kinds and, where its log can be read, why.

Ray's own status names the kinds alone. Why a cloud refused (no capacity, no quota) stands in the autoscaler's log on the head, which a
submitted job can read, for its driver runs there. Nothing here waits or starts anything.
"""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ray.autoscaler.v2.sdk import get_cluster_status

from crossmesh.compat.ray_core import logged_failures, session_folder

_MESSAGE = re.compile(r"""(["'])message\1: (["'])(.+?)\2[,}]""")
_CODE = re.compile(r"""(["'])code\1: (["'])([A-Z_]+)\2""")
_TAIL_BYTES = 1 << 20
_ANSWER_S = 5
_LONGEST = 300


@dataclass(frozen=True)
class FailedLaunch:
    """A node that did not come."""

    node_type: str
    at_s: float
    """Unix time."""
    reason: str = ""
    """Of the cloud, in its words; empty where only Ray's status was there to ask."""


def failed_launches(address: str, since_s: float) -> list[FailedLaunch]:
    """Launches that failed since `since_s` (Unix time) on the cluster at `address`; empty also when nobody can be asked."""
    logged = [launch for launch in _of_log() if launch.at_s >= since_s]
    return logged or [launch for launch in _of_status(address) if launch.at_s >= since_s]


def said_of(launches: Sequence[FailedLaunch]) -> str:
    """One sentence about what failed, by kind of node; empty without any."""
    newest: dict[str, FailedLaunch] = {}
    for launch in sorted(launches, key=lambda one: one.at_s):
        newest[launch.node_type] = launch
    parts = []
    for name, launch in newest.items():
        count = sum(one.node_type == name for one in launches)
        reason = launch.reason or "the reason is in monitor.log on the cluster's head"
        parts.append(f"{name} could not be started ({'once' if count == 1 else f'{count} times'}): {reason.rstrip('.')}")
    return "; ".join(parts)


def launches_in(log: str) -> list[FailedLaunch]:
    """Failed launches that a log of Ray's autoscaler tells of."""
    return [FailedLaunch(launch.node_type, launch.at_s, _short(launch.error)) for launch in logged_failures(log)]


def _short(error: str) -> str:
    """The code and the sentence that are in a cloud's answer, or the answer, cut."""
    message, code = _MESSAGE.search(error), _CODE.search(error)
    said = ": ".join([*([code[3]] if code else []), message[3]]) if message else error
    return said if len(said) <= _LONGEST else said[:_LONGEST] + " ..."


def _of_log() -> list[FailedLaunch]:
    """From the log of the autoscaler on this machine, when this is the head."""
    folder = session_folder()
    with suppress(OSError):
        if folder is not None:
            with (folder / "logs" / "monitor.log").open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
                return launches_in(log.read().decode(errors="replace"))
    return []


def _of_status(address: str) -> list[FailedLaunch]:
    try:
        failed = get_cluster_status(address, timeout=_ANSWER_S).failed_launches
    except Exception:  # noqa: BLE001 - Whatever it is, it is Ray's way of not answering, and the run goes on waiting.
        return []
    return [FailedLaunch(launch.ray_node_type_name, float(launch.failed_ts_s or time.time())) for launch in failed]
