"""Checkpoints on disk and in an object store: whole or not there, proved when they are read, stored behind the loop's back."""

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from crossmesh.errors import CrossmeshError, InputError
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.checkpoint_places import RemotePlace
from crossmesh.train.events import CheckpointEvent, StepEvent, WarningEvent
from quadratic import STEPS, Training, curve, names

BUCKET = "memory://bucket/trial"


@pytest.fixture
def bucket() -> Iterator[MemoryFileSystem]:
    """An object store in memory, empty."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield store
    store.store.clear()


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize("target", ["", "file"])
@pytest.mark.parametrize("name", ["state/state-0.npz", "manifest.json"])
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    tmp_path: Path, name: str, damage: Callable[[Path], object], target: str
) -> None:
    place = tmp_path / (target or "run")
    url = f"file://{place}" if target else ""
    expected = Training(tmp_path / "whole").run()
    Training(tmp_path / "run", stop_after=10, target=url).run()
    damage(place / "step-00000010" / name)
    training = Training(tmp_path / "run", target=url)
    result = training.run()
    if target and damage is Path.unlink and name == "manifest.json":  # Without its manifest it is an upload that did not end.
        assert not any(isinstance(event, WarningEvent) for event in training.events)
    else:
        (warning,) = [event.text for event in training.events if isinstance(event, WarningEvent)]
        assert warning.startswith("The checkpoint after step 10 is damaged")
        assert any(entry.startswith("damaged-00000010-") for entry in names(place))
    assert [event.step for event in result.history if event.first] == [1, 6]
    assert curve(result) == curve(expected)
    # Step 10 was stored again, sound.
    assert [entry for entry in names(place) if not entry.startswith("damaged-")] == ["step-00000010", "step-00000012"]


def test_a_changed_loss_in_the_manifest_is_noticed(tmp_path: Path) -> None:
    Training(tmp_path / "run", stop_after=5).run()
    manifest = tmp_path / "run" / "step-00000005" / "manifest.json"
    contents = json.loads(manifest.read_text())
    contents["contents"]["history"][2]["loss"] = 0.5
    manifest.write_text(json.dumps(contents))
    training = Training(tmp_path / "run")
    training.run()
    warnings = [event.text for event in training.events if isinstance(event, WarningEvent)]
    assert warnings[0].startswith("The checkpoint after step 5 is damaged")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_continues_from_an_object_store_without_its_local_folder(tmp_path: Path, bucket: MemoryFileSystem, processes: int) -> None:
    expected = Training(tmp_path / "whole").run()
    first = Training(tmp_path / "run", stop_after=7, cause="preempted", target=BUCKET, processes=processes)
    first.run()
    assert [event.folder for event in first.events if isinstance(event, CheckpointEvent)] == [f"{BUCKET}/step-{n:08d}" for n in (5, 7)]
    assert names(tmp_path / "run") == []
    result = Training(tmp_path / "another machine", target=BUCKET, processes=processes).run()
    assert [event.step for event in result.history if event.first] == [1, 8]
    assert curve(result) == curve(expected)
    assert sorted(path.rpartition("/")[2] for path in bucket.ls("/bucket/trial", detail=False)) == ["step-00000010", "step-00000012"]
    assert names(tmp_path / "another machine") == []


def test_an_upload_that_did_not_end_is_no_checkpoint(tmp_path: Path, bucket: MemoryFileSystem) -> None:
    Training(tmp_path / "run", stop_after=7, target=BUCKET).run()
    bucket.rm_file("/bucket/trial/step-00000007/manifest.json")
    bucket.pipe_file("/bucket/trial/step-00000007/state/left-over", b"x")
    result = Training(tmp_path / "run", target=BUCKET, stop_after=7).run()
    assert [event.step for event in result.history if event.first] == [1, 6]
    assert sorted(bucket.find("/bucket/trial/step-00000007")) == [
        "/bucket/trial/step-00000007/manifest.json",
        "/bucket/trial/step-00000007/state/state-0.npz",
    ]


def test_the_manifest_goes_up_last_and_comes_down_first(tmp_path: Path, bucket: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("put_file", "rm_file"):
        real = getattr(MemoryFileSystem, name)

        def noted(self: MemoryFileSystem, *args: str, _name: str = name, _real: Callable[..., object] = real) -> object:
            done.append(f"{_name} {Path(args[-1]).name}")
            return _real(self, *args)

        monkeypatch.setattr(MemoryFileSystem, name, noted)
    Training(tmp_path / "run", stop_after=5, target=BUCKET).run()
    assert done == ["put_file state-0.npz", "put_file manifest.json"]
    done.clear()
    RemotePlace(BUCKET).discard(5)
    assert done[0] == "rm_file manifest.json"
    assert RemotePlace(BUCKET).steps() == []


def test_a_target_that_is_no_place_and_one_that_cannot_be_reached_are_one_message(
    tmp_path: Path, bucket: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"checkpoint\.target: nowhere://bucket/trial is not possible: .*Allowed: gs://"):
        Training(tmp_path / "run", target="nowhere://bucket/trial").run()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no credentials")

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    with pytest.raises(CrossmeshError, match=r"memory://bucket/trial could not be reached \(PermissionError: no credentials\).*are kept"):
        Training(tmp_path / "run", target=BUCKET).run()
    assert names(tmp_path / "run") == []


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_loses_nothing_that_is_stored(tmp_path: Path) -> None:
    expected = Training(tmp_path / "whole").run()
    Training(tmp_path / "run", stop_after=5).run()
    training = Training(tmp_path / "run", saving=full_disk)
    with pytest.raises(CrossmeshError, match=r"after step 10 could not be stored .*No space left on device.* Earlier checkpoints are kept"):
        training.run()
    assert names(tmp_path / "run") == ["step-00000005"]
    result = Training(tmp_path / "run").run()
    assert [event.step for event in result.history if event.first] == [1, 6]
    assert curve(result) == curve(expected)


def test_a_checkpoint_that_fails_on_the_way_out_does_not_hide_why_the_loop_failed(tmp_path: Path) -> None:
    def fail_after_step_six() -> None:
        while training.backend.count < 6:
            time.sleep(0.001)
        full_disk()

    training = Training(tmp_path / "run", saving=fail_after_step_six, poisoned=6)
    with pytest.raises(CrossmeshError, match="diverged at step 6"):
        training.run()
    assert any("after step 5 could not be stored" in event.text for event in training.events if isinstance(event, WarningEvent))
    assert names(tmp_path / "run") == []


def test_the_loop_goes_on_while_a_checkpoint_is_stored_and_has_one_in_flight(tmp_path: Path) -> None:
    written, waiting = threading.Event(), []

    def slow() -> None:
        waiting.append(1)
        assert len(waiting) == 1  # Never two at once.
        written.wait(10)
        waiting.pop()

    training = Training(tmp_path / "run", saving=slow)
    thread = threading.Thread(target=training.run)
    thread.start()
    while sum(isinstance(event, StepEvent) for event in training.events) < 10:
        time.sleep(0.001)
    # Steps 6 to 10 were taken, the checkpoint after step 5 is not there yet, and that after step 10 waits for it.
    time.sleep(0.05)
    assert sum(isinstance(event, StepEvent) for event in training.events) == 10
    assert not any(entry.startswith("step-") for entry in names(tmp_path / "run"))
    written.set()
    thread.join(10)
    assert [event.step for event in training.events if isinstance(event, CheckpointEvent)] == [5, 10, STEPS]


def test_what_earlier_attempts_left_half_done_is_removed(tmp_path: Path) -> None:
    Training(tmp_path / "run", stop_after=5).run()
    dead = CheckpointStore(tmp_path / "run", "me", 2, attempt="killed")
    (dead.staging(10) / "state-0.npz").write_bytes(b"half")
    assert dead.newest(pytest.fail).step == 5
    assert [entry for entry in names(tmp_path / "run") if not entry.startswith(".found")] == ["step-00000005"]


def test_clear_removes_every_checkpoint(tmp_path: Path, bucket: MemoryFileSystem) -> None:
    for target in ("", BUCKET):
        Training(tmp_path / "run", target=target).run()
        store = CheckpointStore(tmp_path / "run", "me", 2, target=target)
        store.clear()
        assert store.newest(pytest.fail) is None


@pytest.mark.parametrize("remote", [False, True])
def test_a_run_begins_with_the_last_state_of_another(tmp_path: Path, bucket: MemoryFileSystem, remote: bool) -> None:
    expected = Training(tmp_path / "whole").run()
    Training(tmp_path / "one", identity="one", stop_after=7, target=BUCKET if remote else "").run()
    address, target = (BUCKET, "memory://bucket/two") if remote else (str(tmp_path / "one"), "")
    CheckpointStore(tmp_path / "two", "two", 2, target=target).begin_with(address, 7)
    result = Training(tmp_path / "two", identity="two", target=target).run()
    assert [event.step for event in result.history if event.first] == [1, 8]
    assert curve(result) == curve(expected)
    assert names(tmp_path / "two") == ([] if remote else ["step-00000010", "step-00000012"])
    # Once it has states of its own those count, whatever became of the other's.
    CheckpointStore(tmp_path / "two", "two", 2, target=target).begin_with(str(tmp_path / "gone"), 7)


def test_a_state_that_is_gone_or_damaged_is_no_beginning(tmp_path: Path) -> None:
    Training(tmp_path / "one", identity="one", stop_after=5).run()
    store = CheckpointStore(tmp_path / "two", "two", 2)
    with pytest.raises(InputError, match=r"checkpoint\.resume_from: the checkpoint after step 4 in .*one cannot be used: it is not there"):
        store.begin_with(str(tmp_path / "one"), 4)
    flip_a_byte(tmp_path / "one" / "step-00000005" / "state" / "state-0.npz")
    with pytest.raises(InputError, match=r"state-0\.npz has changed\. Train that run again"):
        store.begin_with(str(tmp_path / "one"), 5)
    assert not (tmp_path / "two").exists()
