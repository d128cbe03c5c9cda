import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from crossmesh.track.mlflow import writer as module
from crossmesh.track.mlflow.client import StoreAddress
from crossmesh.track.mlflow.journal import Journal, JournalEntry, journals
from crossmesh.track.mlflow.sender import one_request
from crossmesh.track.mlflow.writer import Writer
from crossmesh.track.run_log import TrackingError


class _Server:
    """Takes what is sent, unless it is away or refuses; notes what was announced as perhaps sent before."""

    def __init__(self) -> None:
        self.got: list[JournalEntry] = []
        self.again: list[bool] = []
        self.away = False
        self.refused = "no such tag"

    def send(self, entries: Sequence[JournalEntry], *, again: bool = False) -> int:
        if self.away:
            raise TrackingError("away") from ConnectionRefusedError(111, "Connection refused")
        count, batch = one_request(entries)
        if any(self.refused in str(entry.body) for entry in batch):
            raise TrackingError("MLflow does not take it.") from FileNotFoundError("gone")
        self.got += batch
        self.again.append(again)
        return count


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GATHER_S", 0.01)
    monkeypatch.setattr(module, "_RETRY_S", 0.01)


@pytest.fixture
def server() -> _Server:
    return _Server()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def writer(server: _Server, said: list[str], tmp_path: Path) -> Writer:
    return Writer(StoreAddress("http://here", None), server, tmp_path, said.append)


def _step(step: int, run: str = "r") -> JournalEntry:
    return JournalEntry(run, "metrics", [["loss", 1.0, 5, step]])


def test_everything_arrives_in_order_and_nothing_is_left(writer: Writer, server: _Server, said: list[str], tmp_path: Path) -> None:
    entries = [_step(0), JournalEntry("r", "tags", {"a": "b"}), _step(1), _step(2), JournalEntry("r", "status", {})]
    for entry in entries:
        writer.put(entry)
    assert writer.settle(0.0)
    assert (server.got, any(server.again)) == (entries, False)
    writer.rest()
    assert (journals(tmp_path), said) == ([], [])
    writer.put(_step(3))
    assert writer.settle(0.0)
    assert server.got[-1] == _step(3)


def test_who_settles_waits_for_nothing_that_other_threads_put_meanwhile(writer: Writer, server: _Server) -> None:
    writer.put(_step(0))
    send = server.send

    def more(entries: Sequence[JournalEntry], *, again: bool = False) -> int:
        writer.put(_step(len(server.got) + 1, "other"))  # There is always something that waits.
        return send(entries, again=again)

    server.send = more
    assert writer.settle(0.0)
    assert server.got[0] == _step(0)
    server.send = send
    assert writer.settle(0.0)


def test_while_the_server_is_away_records_wait_and_it_is_said_once(
    writer: Writer, server: _Server, said: list[str], tmp_path: Path
) -> None:
    server.away = True
    for step in range(50):
        writer.put(_step(step))
    assert not writer.settle(0.1)
    assert not writer.settle(0.1)
    (path,) = journals(tmp_path)
    away = f"MLflow, http://here, does not take records (Connection refused). The job goes on; what it logs waits in {path} until it does."
    assert said == [away]
    server.away = False
    assert writer.settle(10.0)
    assert server.got == [_step(step) for step in range(50)]
    assert server.again[0]  # What the failed request did is not known.
    assert not any(server.again[1:])
    deadline = time.monotonic() + 5
    while len(said) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert said[1].startswith("MLflow, http://here, is back after 0 s")


def test_what_is_left_at_the_end_is_said_and_sent_by_the_next_process(
    writer: Writer, server: _Server, said: list[str], tmp_path: Path
) -> None:
    server.away = True
    for step in range(3):
        writer.put(_step(step))
    writer.settle(0.0)
    writer.rest()
    (path,) = journals(tmp_path)
    assert said[-1].startswith(f"MLflow, http://here, does not take records: 3 of this job wait in {path}. The next job")
    server_of_next = _Server()
    following = Writer(StoreAddress("http://here", None), server_of_next, tmp_path, said.append)
    following.replay()
    assert server_of_next.got == []  # The first process lives.
    with pytest.raises(TrackingError, match=f"Records of run r wait in {path} for another job"):
        _wait_elsewhere(following, "r")
    _wait_elsewhere(following, "s")
    _die(writer)
    following.replay()
    assert server_of_next.got == [_step(0), _step(1), _step(2)]
    assert (server_of_next.again[0], journals(tmp_path), said[-1]) == (True, [], "sending 3 records that an earlier job left for MLflow")
    _wait_elsewhere(following, "r")


def test_a_server_that_is_back_after_the_end_gets_the_rest_and_no_file_is_left(writer: Writer, server: _Server, tmp_path: Path) -> None:
    server.away = True
    writer.put(_step(0))
    assert not writer.settle(0.0)
    writer.rest()
    assert len(journals(tmp_path)) == 1
    server.away = False
    assert writer.settle(10.0)
    assert (server.got, journals(tmp_path)) == ([_step(0)], [])


def _die(writer: Writer) -> None:
    """Let go of the journal as a process that ends."""
    journal, writer._journal = writer._journal, None
    assert journal is not None
    time.sleep(0.2)  # As long as its thread is in fsync, the file is not closed.
    os.close(journal._descriptor)


def _wait_elsewhere(writer: Writer, run: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ELSEWHERE_S", 0.0)
        writer.wait_elsewhere(run)


def test_a_replay_that_breaks_off_keeps_the_rest(server: _Server, said: list[str], tmp_path: Path) -> None:
    left = Journal.create(tmp_path)
    for run in ("r", "s"):
        left.append(_step(0, run))
    os.close(left._descriptor)
    writer = Writer(StoreAddress("http://here", None), server, tmp_path, said.append)
    server.away = True
    with pytest.raises(TrackingError, match="away"):
        writer.replay()
    server.away = False
    writer.replay()
    assert [entry.run_id for entry in server.got] == ["r", "s"]


def test_what_the_server_refuses_for_good_is_put_aside_alone(writer: Writer, server: _Server, said: list[str], tmp_path: Path) -> None:
    server.refused = "bad"
    entries = [_step(0), JournalEntry("r", "metrics", [["bad", 1.0, 5, 1]]), _step(2), JournalEntry("r", "text", {"path": "bad"}), _step(3)]
    for entry in entries:
        writer.put(entry)
    assert writer.settle(0.0)
    assert server.got == [_step(0), _step(2), _step(3)]
    assert (tmp_path / "refused.jsonl").read_bytes() == entries[1].line() + entries[3].line()
    assert said == [f"MLflow does not take it. What is refused of this run is kept in {tmp_path / 'refused.jsonl'}; the job goes on."]


def test_a_metric_that_is_refused_costs_itself_alone(writer: Writer, server: _Server, tmp_path: Path) -> None:
    server.refused = "bad"
    values = [["one", 1.0, 5, 0], ["bad", 2.0, 5, 0], ["two", 3.0, 5, 0]]
    writer.put(JournalEntry("r", "metrics", values))
    writer.put(_step(1))
    assert writer.settle(0.0)
    assert [entry.body for entry in server.got] == [[values[0]], [values[2]], _step(1).body]
    assert (tmp_path / "refused.jsonl").read_bytes() == JournalEntry("r", "metrics", [values[1]]).line()
