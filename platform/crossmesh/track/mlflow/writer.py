"""The one thread that sends a process's journal to MLflow, and sends what ended processes left.

Logging costs the caller an append to a file; requests, retries and waiting happen here. MLflow's own retries and timeouts are bounded by
environment variables (`client.py`); what fails nevertheless stays in the journal and is tried again, in order. Of a record that MLflow
refuses for what it is (a run that was deleted, a value it does not take), a copy is kept and the rest goes on.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from crossmesh.files import locked
from crossmesh.track.mlflow.client import StoreAddress, reason
from crossmesh.track.mlflow.journal import Journal, JournalEntry, journals, runs_waiting
from crossmesh.track.mlflow.sender import Sender
from crossmesh.track.run_log import TrackingError

_GATHER_S = 2.0
"""Records wait so long for others that go in the same request."""
_RETRY_S = 5.0
"""From one failure of MLflow's own retries to the next try."""
_REMIND_S = 60.0
_IDLE_S = 10.0
"""The thread ends when there was nothing to send for so long; the next record starts another."""
_READ_AT_ONCE = 1_000
_ELSEWHERE_S = 30.0
_FOR_GOOD = ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "INVALID_STATE", "NOT_FOUND", "ENDPOINT_NOT_FOUND")


class Writer:
    """Takes a process's records and sees to it that MLflow gets each once.

    Args:
        address: named in messages.
        sender: sends one request.
        folder: of the journals of this address.
        say: hears, from any thread, once that MLflow is away, now and then how much waits, and that it is back.
    """

    def __init__(self, address: StoreAddress, sender: Sender, folder: Path, say: Callable[[str], None]) -> None:
        self._named = f"MLflow, {address.shown},"
        self._sender = sender
        self._folder = folder
        self._say = say
        self._changed = threading.Condition()
        self._journal: Journal | None = None
        self._thread: threading.Thread | None = None
        self._urgent = 0
        self._resting = False
        self._refused: set[str] = set()
        self._away_since: float | None = None

    def put(self, entry: JournalEntry) -> None:
        """Keep `entry` and send it soon. Raises `TrackingError` when it cannot be kept."""
        with self._changed:
            try:
                if self._journal is None:
                    self._journal = Journal.create(self._folder)
                self._journal.append(entry)
                self._resting = False
            except OSError as error:
                raise TrackingError(
                    f"Could not keep a record for MLflow in {self._folder}: {error.strerror}. "
                    "Make room under storage.root; then run the same command again."
                ) from error
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mlflow-journal", daemon=True)
                self._thread.start()
            if self._journal.waiting in (1, _READ_AT_ONCE):  # Waking the thread for each would cost more than the record.
                self._changed.notify_all()

    def settle(self, patience_s: float) -> bool:
        """Wait until what was put before is sent, but no longer than `patience_s` while MLflow is away; return whether it is.

        Other threads may go on putting records: those are not waited for.
        """
        started = time.monotonic()
        with self._changed:
            self._urgent += 1
            self._changed.notify_all()
            journal, last = self._journal, self._journal.sent + self._journal.waiting if self._journal else 0
            try:
                while journal is not None and journal is self._journal and journal.waiting and journal.sent < last:
                    if self._away_since is not None and time.monotonic() - started >= patience_s:
                        return False
                    self._changed.wait(0.2)
                return True
            finally:
                self._urgent -= 1

    def rest(self) -> None:
        """Let go of the journal as soon as all of it is sent; say where it is when records of it wait."""
        with self._changed:
            journal, self._resting = self._journal, True
            if journal is None:
                return
            if journal.waiting:
                self._say(
                    f"{self._named} does not take records: {journal.waiting:,} of this job wait in {journal.path}. "
                    "The next job that tracks there sends them first."
                )
                return
            self._let_go()

    def _let_go(self) -> None:
        """Close the journal, which removes its file."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def replay(self) -> None:
        """Send what processes that have ended left, oldest first; one process at a time does that. Stops when MLflow is away."""
        if not journals(self._folder):
            return
        with locked(self._folder / "replay.lock", lambda: self._say("waiting for another job that sends what was left for MLflow")):
            for path in journals(self._folder):
                journal = Journal.take(path)
                if journal is None:  # Its process is running and sends it.
                    continue
                try:
                    if journal.waiting:
                        self._say(f"sending {journal.waiting:,} records that an earlier job left for MLflow")
                    again = True  # The last request of that process may have arrived.
                    while self._send_some(journal, again=again):
                        again = False
                finally:
                    journal.close()

    def wait_elsewhere(self, run_id: str) -> None:
        """Wait until no other process has records of a run. Raises `TrackingError` when one keeps them."""
        deadline = time.monotonic() + _ELSEWHERE_S
        while left := [path for path in journals(self._folder) if path != self._own_path() and run_id in runs_waiting(path)]:
            if time.monotonic() > deadline:
                raise TrackingError(
                    f"Records of run {run_id} wait in {left[0]} for another job to send them. "
                    "Let that job end, and see that MLflow answers; then run the same command again."
                )
            time.sleep(0.2)

    def _own_path(self) -> Path | None:
        with self._changed:
            return self._journal.path if self._journal else None

    def _run(self) -> None:
        again = False
        reminded = 0.0
        while journal := self._next():
            try:
                with suppress(OSError):
                    journal.sync()
                self._send_some(journal, again=again)
                again = False
            except TrackingError as error:
                again = True  # What the failed request did is not known.
                reminded = self._away(error, journal, reminded)
                time.sleep(_RETRY_S)
            else:
                self._back(journal)

    def _next(self) -> Journal | None:
        """Wait for records and, unless somebody waits for them, for more of them; None ends the thread."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._journal is not None and self._journal.waiting, _IDLE_S):
                self._thread = None
                return None
            if self._away_since is None:
                self._changed.wait_for(lambda: self._urgent or (self._journal and self._journal.waiting >= _READ_AT_ONCE), _GATHER_S)
            return self._journal

    def _send_some(self, journal: Journal, *, again: bool) -> bool:
        """Send the next request of a journal; False when there is nothing to send. What MLflow refuses for good is put aside."""
        try:
            entries, ends = journal.unsent(_READ_AT_ONCE)
            if not entries:
                return False
            count = self._send(entries, again=again)
            journal.store_offset(ends[count - 1])  # Before the lock: who logs must not wait for the disk.
            with self._changed:
                journal.count_sent(count)
                if self._resting and journal is self._journal and not journal.waiting:
                    self._let_go()
                self._changed.notify_all()
        except OSError as error:
            raise TrackingError(f"The journal {journal.path} cannot be used: {reason(error)}.") from error
        return True

    def _send(self, entries: list[JournalEntry], *, again: bool) -> int:
        """Send the first of `entries` and return how many. What MLflow refuses for good is put aside, alone."""
        for some in (entries, entries[:1]):
            try:
                return self._request(some, again=again)
            except TrackingError as error:
                if not _for_good(error):
                    raise
                refused = error
        if len(entries[0].body) > 1 and entries[0].kind == "metrics":  # One of them is refused: the others are not lost for it.
            for value in entries[0].body:
                self._send([replace(entries[0], body=[value])], again=True)
            return 1
        kept = self._folder / "refused.jsonl"
        with kept.open("ab") as stream:
            stream.write(entries[0].line())
        if entries[0].run_id not in self._refused:
            self._refused.add(entries[0].run_id)
            self._say(f"{refused} What is refused of this run is kept in {kept}; the job goes on.")
        return 1

    def _request(self, entries: list[JournalEntry], *, again: bool) -> int:
        try:
            return self._sender.send(entries, again=again)
        except TrackingError:
            raise
        except Exception as error:  # Stores of artifacts have exceptions of their own, and this thread must not end.
            raise TrackingError(f"Could not send a record to {self._named} {reason(error)}.") from error

    def _away(self, error: TrackingError, journal: Journal, reminded: float) -> float:
        """Say so once, and after that how much waits."""
        now = time.monotonic()
        with self._changed:
            first, self._away_since = self._away_since is None, self._away_since or now
            waiting = journal.waiting
            self._changed.notify_all()
        if first:
            why = reason(error.__cause__ or error)
            self._say(f"{self._named} does not take records ({why}). The job goes on; what it logs waits in {journal.path} until it does.")
        elif now - reminded >= _REMIND_S:
            self._say(f"{self._named} still does not take records; {waiting:,} wait")
        else:
            return reminded
        return now

    def _back(self, journal: Journal) -> None:
        with self._changed:
            if self._away_since is None:
                return
            seconds, self._away_since = time.monotonic() - self._away_since, None
            waiting = journal.waiting
        self._say(f"{self._named} is back after {seconds:.0f} s" + (f"; {waiting:,} records follow" if waiting else ""))


def _for_good(error: TrackingError) -> bool:
    """Whether sending again cannot help."""
    cause = error.__cause__
    return isinstance(cause, FileNotFoundError | KeyError | TypeError | AttributeError) or getattr(cause, "error_code", "") in _FOR_GOOD
