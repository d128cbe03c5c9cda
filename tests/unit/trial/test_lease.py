"""A lease is had by one at a time, whoever dies, stands still or tidies."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crossmesh.files import write_json
from crossmesh.trial import lease as leases
from crossmesh.trial.lease import Clock, LeaseLostError, leased, newest, owner

DIES = """
import os, signal, sys
from pathlib import Path
from crossmesh.trial.lease import leased

with leased(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""
QUICK = Clock(beat_s=0.05, timeout_s=0.6)


def elsewhere(folder: Path, number: int, beat: int) -> None:
    """What a job on another host last said."""
    write_json(folder / f"{number}.json", {"machine": "another", "pid": 1, "started": 0.0, "beat": beat, "at": 0.0, "released": False})


def test_one_after_another_and_who_waits_is_told_once(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with leased(tmp_path, lambda: order.append("waits"), clock=QUICK):
            order.append("second")

    with leased(tmp_path, clock=QUICK):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(1.2)  # Longer than the time-out: the owner says that it lives.
        order.append("first")
    thread.join(10)
    assert order == ["waits", "first", "second"]
    assert (newest(tmp_path), [file.name for file in tmp_path.iterdir()]) == (2, ["2.json"])


def test_an_owner_on_another_host_is_succeeded_when_it_is_silent_for_the_time_out(tmp_path: Path) -> None:
    elsewhere(tmp_path, 7, 0)
    beats = iter(range(1, 4))
    asked: list[float] = []

    def still_beats() -> None:
        asked.append(time.monotonic())
        if (beat := next(beats, None)) is not None:
            elsewhere(tmp_path, 7, beat)

    started = time.monotonic()
    with leased(tmp_path, check=still_beats, clock=QUICK):
        assert newest(tmp_path) == 8
        assert time.monotonic() - started > 1.5 + QUICK.timeout_s - 0.1  # Three looks of half a second saw it live.
    assert owner(tmp_path) is not None


def test_an_owner_whose_process_is_gone_is_succeeded_at_once(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False, timeout=60, env={**os.environ, "PYTHONPATH": path})
    said = owner(tmp_path)
    assert said is not None
    assert not said["released"]
    waited: list[int] = []
    with leased(tmp_path, lambda: waited.append(1)):
        assert (newest(tmp_path), waited) == (2, [])


def test_who_was_succeeded_is_told_and_spoils_nothing(tmp_path: Path) -> None:
    with leased(tmp_path, clock=QUICK) as lease:
        lease.check()
        elsewhere(tmp_path, 2, 0)  # This process stood still for too long.
        time.sleep(0.3)
        with pytest.raises(LeaseLostError, match="has taken"):
            lease.check()
    assert json.loads((tmp_path / "2.json").read_text())["released"] is False


def test_a_number_that_later_owners_have_tidied_away_is_not_theirs(tmp_path: Path) -> None:
    elsewhere(tmp_path, 9, 0)
    assert not leases._claim(tmp_path, 5)
    assert not leases._claim(tmp_path, 9)
    assert [file.name for file in tmp_path.iterdir()] == ["9.json"]
