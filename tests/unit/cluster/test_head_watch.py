"""A head that stays away: when patience is over, and what the person is told."""

import errno
import socket
import threading

import pytest

from crossmesh.cluster.head_watch import Absence, _answers, watched


def test_patience_begins_when_an_answer_stops_coming_and_again_after_each() -> None:
    absence = Absence(10)
    looks = [(False, 0), (False, 100), (True, 101), (False, 102), (False, 111), (True, 112), (False, 113), (False, 122), (False, 123)]
    assert [absence.seen(answers, now) for answers, now in looks] == [False] * 8 + [True]


def test_the_time_in_which_this_machine_was_paused_is_no_absence() -> None:
    absence = Absence(10)
    looks = [(True, 0), (False, 1), (False, 500), (False, 505), (False, 510)]
    assert [absence.seen(answers, now) for answers, now in looks] == [False] * 4 + [True]


def test_what_is_short_here_is_no_absence_of_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: OSError) -> bool:
        def create(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(socket, "create_connection", create)
        return _answers("10.0.0.1", 6379)

    assert fails(OSError(errno.EMFILE, "Too many open files"))
    assert not fails(OSError(errno.EHOSTUNREACH, "No route to host"))
    assert not fails(ConnectionRefusedError())
    assert not fails(TimeoutError())


def test_a_head_that_goes_away_ends_the_job_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crossmesh.cluster.head_watch.PATIENCE_S", 1.0)
    monkeypatch.setattr("crossmesh.cluster.head_watch._LOOK_S", 0.1)
    told: list[str] = []
    ended = threading.Event()

    def end(text: str) -> None:
        told.append(text)
        ended.set()

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        with watched(address, end):
            assert not ended.wait(2)
            head.close()
            assert ended.wait(10)
    assert len(told) == 1
    assert address in told[0]
    assert "run the same command" in told[0]
