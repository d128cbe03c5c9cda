from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from crossmesh.track.mlflow.client import StoreAddress
from crossmesh.track.mlflow.journal import JournalEntry
from crossmesh.track.mlflow.sender import Sender, metric_entry, one_request, spool
from crossmesh.track.tracked_run import registered_name


def test_metrics_of_one_run_go_together_up_to_the_limit_of_a_request() -> None:
    steps = [metric_entry("a", {f"m{index}": 1.0 for index in range(300)}, step, 5) for step in range(5)]
    assert one_request(steps)[0] == 3  # 900 values; four would be 1,200.
    assert one_request([steps[0], metric_entry("b", {"m": 1.0}, 0, 5)])[0] == 1
    assert one_request([steps[0], JournalEntry("a", "tags", {}), steps[1]])[0] == 1
    assert one_request([JournalEntry("a", "tags", {}), JournalEntry("a", "tags", {})])[0] == 1
    assert one_request([metric_entry("a", {f"m{index}": 1.0 for index in range(1_200)}, 0, 5), steps[0]])[0] == 1


class _Client:
    """Has one value of `loss`, at step 1, and keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[list[tuple[str, float, int, int]]] = []
        self.uploaded: list[tuple[str, str]] = []

    def log_artifacts(self, _run_id: str, source: str, folder: str) -> None:
        self.uploaded.append((source, folder))

    def get_run(self, _run_id: str) -> Any:
        return SimpleNamespace(data=SimpleNamespace(metrics={"loss": 9.0, "system/cpu": 1.0}))

    def get_metric_history(self, _run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(key=key, step=1, value=9.0)]

    def log_batch(self, _run_id: str, *, metrics: list[Any], synchronous: bool) -> None:
        assert synchronous
        self.sent.append([(one.key, one.value, one.timestamp, one.step) for one in metrics])


def test_only_what_is_sent_again_is_looked_up_and_left_out() -> None:
    client = _Client()
    sender = Sender(StoreAddress("http://x", None), client)
    entries = [metric_entry("r", {"loss": 1.0, "rate": 2.0}, 1, 5), metric_entry("r", {"loss": 3.0}, 2, 6)]
    assert sender.send(entries, again=True) == 2
    assert sender.send([metric_entry("r", {f"m{index}": 1.0 for index in range(1_200)}, 0, 5)]) == 1
    assert client.sent[0] == [("rate", 2.0, 5, 1), ("loss", 3.0, 6, 2)]
    assert [len(batch) for batch in client.sent[1:]] == [1_000, 200]
    assert sender.steps_of("r") == {("loss", 1)}


def test_files_are_kept_as_they_are_now(tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.bin").write_text("one")
    kept = spool(tmp_path / "journal", folder)
    single = spool(tmp_path / "journal", folder / "deep" / "a.bin")
    (folder / "deep" / "new").write_text("two")
    (folder / "deep" / "new").replace(folder / "deep" / "a.bin")
    assert (kept.name, (kept / "deep" / "a.bin").read_text(), single.name, single.read_text()) == ("adapter", "one", "a.bin", "one")
    assert kept.parent != single.parent
    client = _Client()
    sender = Sender(StoreAddress("http://x", None), client)
    entry = JournalEntry("r", "files", {"source": str(kept), "folder": "adapter"})
    assert [sender.send([entry]), sender.send([entry])] == [1, 1]  # As after the death of a process between sending and saying so.
    assert client.uploaded == [(str(kept), "adapter")]
    assert single.exists()


@pytest.mark.parametrize(
    ("weights", "name"), [("hf://google/gemma-3-1b", "hf-google-gemma-3-1b-lora"), ("random://a@0", "random-a-0-lora")]
)
def test_a_registered_name_has_neither_slashes_nor_colons(weights: str, name: str) -> None:
    assert registered_name(weights) == name
