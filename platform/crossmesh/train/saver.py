"""Saving while training goes on: one checkpoint at a time is written, digested and stored behind the loop's back.

The backend copies its state and returns; everything after that runs in a thread of its own. A failure is raised in the loop, once.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from crossmesh.errors import CrossmeshError
from crossmesh.train.backend import Backend, Saving
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import CheckpointEvent, OnEvent, StepEvent, WarningEvent


class Saver:
    """Saves the state of `backend` into `store`; as a context manager it ends with nothing in flight."""

    def __init__(self, backend: Backend, store: CheckpointStore, emit: OnEvent) -> None:
        """`emit` hears of each checkpoint once it is safe, from `poll`, `start` or the end of the block."""
        self._backend = backend
        self._store = store
        self._emit = emit
        self._thread = ThreadPoolExecutor(1, "saver")
        self._flight: Future[CheckpointEvent | None] | None = None
        self._step = 0

    def start(self, history: tuple[StepEvent, ...]) -> None:
        """Begin to save the state after the last step of `history`, once the save before it is done."""
        self.finish()
        self._step = history[-1].step
        try:
            saving = self._backend.save_state(self._store.staging(self._step))
        except OSError as error:
            raise self._failure(error) from error
        self._flight = self._thread.submit(self._store_state, saving, history)

    def poll(self) -> None:
        """Tell of a save that is done; raise `CrossmeshError` for one that failed."""
        if self._flight is not None and self._flight.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the save in flight, and do as `poll` does."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            event = flight.result()
        except CrossmeshError:
            raise
        except Exception as error:  # Frameworks wrap what the disk says in exceptions of their own.
            raise self._failure(error) from error
        if event is not None:
            self._emit(event)

    def _store_state(self, saving: Saving, history: tuple[StepEvent, ...]) -> CheckpointEvent | None:
        saving()
        if self._backend.rank:
            return None
        return CheckpointEvent(history[-1].step, self._store.commit(history))

    def _failure(self, error: Exception) -> CrossmeshError:
        self._store.unstage(self._step)
        lines = str(error).strip().splitlines() or [""]
        reason = lines[-1].strip()[:300]  # DCP tells the stories of all ranks first.
        return CrossmeshError(
            f"The checkpoint after step {self._step} could not be stored ({type(error).__name__}: {reason}). Earlier checkpoints are kept. "
            "Make room under storage.root, or set storage.root or checkpoint.target to a larger place, and run again to continue."
        )

    def __enter__(self) -> "Saver":
        """Nothing is in flight."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait for the save in flight; when the loop has failed already, its failure stays the one that is raised."""
        try:
            self.finish()
        except CrossmeshError as failure:
            if error is None:
                raise
            self._emit(WarningEvent(str(failure)))
        finally:
            self._thread.shutdown(wait=False)
