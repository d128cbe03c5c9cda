import os
import subprocess
import sys
from pathlib import Path

import pytest

from crossmesh.track.mlflow import journal as module
from crossmesh.track.mlflow.journal import Journal, JournalEntry, journals, runs_waiting


def _entries(count: int, run: str = "r") -> list[JournalEntry]:
    return [JournalEntry(run, "metrics", [["loss", float(step), 5, step]]) for step in range(count)]


def _abandon(journal: Journal) -> Path:
    """End as a process that dies: the lock goes, the file stays."""
    os.close(journal._descriptor)
    return journal.path


def test_what_is_not_sent_is_there_in_order_after_the_process_has_died(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from crossmesh.track.mlflow.journal import JournalEntry, Journal\n"
        "journal = Journal.create(Path(sys.argv[1]))\n"
        "for step in range(4): journal.append(JournalEntry('r', 'metrics', [['loss', float('nan'), 5, step]]))\n"
        "_, ends = journal.unsent(2)\n"
        "journal.store_offset(ends[-1])\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = {"PYTHONPATH": str(Path(module.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False).returncode == -9
    (left,) = journals(tmp_path)
    assert runs_waiting(left) == {"r"}
    taken = Journal.take(left)
    assert taken is not None
    entries, ends = taken.unsent(10)
    assert (taken.waiting, [entry.body[0][3] for entry in entries], str(entries[0].body[0][1])) == (2, [2, 3], "nan")
    taken.store_offset(ends[-1])
    taken.count_sent(2)
    taken.close()
    assert list(tmp_path.iterdir()) == []


def test_no_two_have_a_journal_at_once(tmp_path: Path) -> None:
    mine = Journal.create(tmp_path)
    mine.append(_entries(1)[0])
    assert Journal.take(mine.path) is None
    left = Journal.take(_abandon(mine))
    assert left is not None
    assert Journal.take(left.path) is None
    left.close()
    assert Journal.take(tmp_path / "1-gone.jsonl") is None


def test_half_a_line_at_the_end_and_a_damaged_one_between_are_passed_over(tmp_path: Path) -> None:
    mine = Journal.create(tmp_path)
    first, second = _entries(2)
    mine.append(first)
    os.write(mine._descriptor, b"\x00\x00\x00\n")
    mine.append(second)
    os.write(mine._descriptor, b'["r","metrics",[["lo')
    left = Journal.take(_abandon(mine))
    assert left is not None
    assert left.unsent(10)[0] == [first, second]


def test_a_long_journal_that_is_sent_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRUNCATED_FROM", 100)
    mine = Journal.create(tmp_path)
    for entry in _entries(5):
        mine.append(entry)
    mine.store_offset(mine.unsent(4)[1][-1])
    mine.count_sent(4)
    assert mine.path.stat().st_size > 100
    mine.store_offset(mine.unsent(4)[1][-1])
    mine.count_sent(1)
    assert mine.path.stat().st_size == 0
    late = JournalEntry("s", "text", {"path": "a", "text": "ü\n"})
    mine.append(late)
    assert (mine.waiting, mine.unsent(4)[0]) == (1, [late])
    left = Journal.take(_abandon(mine))
    assert left is not None
    assert left.unsent(4)[0] == [late]


def test_a_file_that_was_emptied_without_a_word_of_it_is_read_from_its_beginning(tmp_path: Path) -> None:
    mine = Journal.create(tmp_path)
    mine.append(_entries(1)[0])
    mine.store_offset(mine.unsent(1)[1][-1])
    mine.count_sent(1)
    os.ftruncate(mine._descriptor, 0)  # The process died between this and the offset.
    left = Journal.take(_abandon(mine))
    assert left is not None
    assert left.waiting == 0
