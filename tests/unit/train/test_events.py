import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossmesh.config.services import TrackingSpec
from crossmesh.track import system
from crossmesh.train.attempt import _Listener
from crossmesh.train.events import Event, StageEvent, SystemEvent, from_json, to_json
from crossmesh.train.worker import system_metrics


def _assignment(folder: Path, **tracking: Any) -> Any:
    return SimpleNamespace(
        events=folder / "events.jsonl", system=folder / "system", spec=SimpleNamespace(tracking=TrackingSpec(**tracking))
    )


def test_one_worker_of_each_node_tells_the_driver_what_the_node_is_busy_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "EVERY_S", 60.0)
    job = _assignment(tmp_path)
    received: list[Event] = []
    listener = _Listener(job, received.append)
    listener.listen()
    job.events.write_text(json.dumps(to_json(StageEvent("loading"))) + "\n" + '{"kind": "Stage')
    for node, local_rank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        with system_metrics(job, node, local_rank):
            pass
    listener.listen()
    assert received[0] == StageEvent("loading")
    assert sorted(event.node for event in received[1:] if isinstance(event, SystemEvent)) == ["node_0", "node_1"]
    with job.events.open("a") as stream:
        stream.write('Event", "text": "done"}\n')
    listener.listen()
    assert received[3:] == [StageEvent("done")]


def test_without_system_metrics_nothing_is_sampled(tmp_path: Path) -> None:
    with system_metrics(_assignment(tmp_path, system_metrics=False), 0, 0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_system_event_travels_as_json() -> None:
    event = SystemEvent("node_1", 12.5, {"cpu_utilization_percentage": 3.0})
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
