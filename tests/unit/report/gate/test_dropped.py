"""A report says which rows were not trained on, and why."""

from typing import Any, cast

from crossmesh.report.gate.dropped import dropped_notes
from crossmesh.track.run_log import TrackingError
from crossmesh.track.tracked_run import TrackedRun
from crossmesh.track.tracker import Tracker


class Store:
    def read_json(self, run_id: str, _path: str) -> Any:
        if run_id == "c" * 32:
            raise TrackingError("away")
        places = ["rows.jsonl, line 3", "rows.jsonl, line 7"]
        return {"dropped": [{"reason": "longer than data.max_length", "count": 1200, "places": places}], "notes": []}


def test_drops_are_named_once_for_all_runs_that_had_them() -> None:
    dropped = {"a": 1200.0, "b": 1200.0, "c": 2.0, "d": 0.0}
    runs = [TrackedRun(name * 32, "torch", "FINISHED", metrics={"data/dropped_rows": count}) for name, count in dropped.items()]
    assert dropped_notes(cast("Tracker", Store()), [*runs, TrackedRun("e" * 32, "old", "FINISHED")]) == (
        "Rows dropped before training, torch aaaaaaaa and 1 more: "
        "1,200 x longer than data.max_length (rows.jsonl, line 3, rows.jsonl, line 7).",
        "Rows dropped before training, torch cccccccc: 2 rows.",
    )
