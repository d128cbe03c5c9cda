"""The trackers by name, and the one that a job uses: that of `tracking.trackers`, or several as one."""

from collections.abc import Callable

from crossmesh.config.services import StorageSpec, TrackingSpec
from crossmesh.errors import InputError
from crossmesh.plugins import Registry
from crossmesh.track.composite import CompositeTracker
from crossmesh.track.run_log import RunLog
from crossmesh.track.tracker import Tracker

TrackerFactory = Callable[[TrackingSpec, StorageSpec, Callable[[str], None] | None], RunLog]

TRACKERS: Registry[TrackerFactory] = Registry(
    "crossmesh.trackers",
    "tracker",
    {"mlflow": "crossmesh.track.mlflow.tracker:MlflowTracker", "none": "crossmesh.track.memory:MemoryTracker"},
)


def open_tracker(tracking: TrackingSpec, storage: StorageSpec, say: Callable[[str], None] | None = None) -> Tracker:
    """Open what `tracking.trackers` names. `say` hears, from any thread, that a tracker went away or came back.

    Raises:
        InputError: a name that no tracker has, or a first one that cannot be read; what a tracker does not take of `tracking`.
        TrackingError: a tracker cannot be opened or reached.
    """
    factories = {name: TRACKERS.load(name) for name in tracking.trackers}
    logs = {name: make(tracking, storage, say) for name, make in factories.items()}
    name, *others = logs
    first = logs[name]
    if not isinstance(first, Tracker):
        raise InputError(
            f"tracking.trackers={list(tracking.trackers)}: the tracker {name!r} cannot be read, and the first one has to be. "
            f"Put another before it, e.g. tracking.trackers=[mlflow,{name}]."
        )
    return CompositeTracker(tracking, storage, first, {other: logs[other] for other in others}, say) if others else first
