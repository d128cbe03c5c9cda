"""What `train` makes of a run folder before it starts anything."""

from pathlib import Path

import pytest

from crossmesh.models.weights import ModelFolder
from crossmesh.spec.experiment import ExperimentSpec
from crossmesh.train.assignment import Assignment
from crossmesh.train.events import Event, WarningEvent
from crossmesh.train.launch import _finished


@pytest.mark.parametrize(
    "text", ["", '{"identity": "x", "adap', "[]", "{}", '{"identity": 1, "adapter_digest": 2, "data_digest": 3, "history": [{}]}']
)
def test_a_damaged_result_is_reported_and_made_again(tmp_path: Path, text: str) -> None:
    assignment = Assignment(ExperimentSpec(), ModelFolder(tmp_path, "w", "t", "c"), tmp_path, tmp_path / "attempt")
    assignment.result.write_text(text)
    heard: list[Event] = []
    assert _finished(assignment, heard.append) is None
    assert isinstance(heard[0], WarningEvent)
    assert "result.json is damaged" in heard[0].text
    assert not assignment.result.exists()
