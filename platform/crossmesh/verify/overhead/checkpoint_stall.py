"""How long saving a checkpoint holds the loop up, beside saving the same state while the loop waits.

The state is made large by a high LoRA rank, so that writing it takes a time that can be seen. Everything goes through the loop's own
`Saver` and `CheckpointStore`: copying, writing, digests, fsync and renaming are all in it.
"""

import time
from pathlib import Path
from statistics import median
from typing import Any

from crossmesh.data.batches import PackedBatch
from crossmesh.train.backend import Backend
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import CheckpointEvent, Event, StepEvent
from crossmesh.train.saver import Saver
from crossmesh.verify.measure import Progress, ratio
from crossmesh.verify.peers.work import packed_work, ready_backend
from crossmesh.verify.process import Request, answer_measurement

_QUIET_STEPS = 5
_EVERY = 100
"""Steps from one checkpoint to the next, as the paper has it."""


def main(request: Request, progress: Progress) -> dict[str, Any]:
    """Measure the backend of `request` on the model in `folder`, its adapter of rank `rank`, in `saves` rounds."""
    folder, rounds = Path(request["folder"]), request["saves"]
    spec, batches = packed_work(request["backend"], folder, request["limit"], 1 << 10, request["rank"])
    run = _Run(ready_backend(spec, folder, Path(request["cache"])), batches, CheckpointStore(Path(request["scratch"]), "stall", 1))
    run.step()
    quiet = [run.step() for _ in range(_QUIET_STEPS)]
    held, extra, waited = [], [], []
    for done in range(1 + rounds):  # The first one warms up: threads, folders, the page cache.
        start, during = run.save_behind()
        whole = run.save_and_wait()
        if done:
            held.append(start)
            extra.append(sum(during) - len(during) * median(quiet))
            waited.append(whole)
        progress("saves", done + 1, 1 + rounds)
    step = median(quiet)
    return {
        "waited_over_held": ratio(waited, held).figures(),
        "share_of_loop": (median(held) + max(0.0, median(extra))) / (_EVERY * step),
        "held_s": held,
        "slower_steps_s": extra,
        "waited_s": waited,
        "step_s": step,
        "state_bytes": run.state_bytes,
        "steps_between_saves": _EVERY,
    }


class _Run:
    """The loop's parts, driven by hand."""

    def __init__(self, backend: Backend, batches: list[PackedBatch], store: CheckpointStore) -> None:
        self._backend = backend
        self._batches = batches
        self._heard: list[Event] = []
        self._saver = Saver(backend, store, self._heard.append)
        self._history: tuple[StepEvent, ...] = ()

    def step(self) -> float:
        """Take a step; return its seconds."""
        number = len(self._history) + 1
        batch = self._batches[number % len(self._batches)]
        start = time.perf_counter()
        metrics = self._backend.step(batch)
        seconds = time.perf_counter() - start
        event = StepEvent(
            step=number,
            steps=number,
            loss=metrics.loss,
            grad_norm=metrics.grad_norm,
            learning_rate=metrics.learning_rate,
            loss_tokens=metrics.loss_tokens,
            real_tokens=batch.real_tokens,
            padded_tokens=batch.padded_tokens,
            seconds=seconds,
            first=False,
        )
        self._history = (*self._history, event)
        return seconds

    def save_behind(self) -> tuple[float, list[float]]:
        """Start a save and step on until it is stored; how long the start took, and the steps."""
        self._heard.clear()
        start = time.perf_counter()
        self._saver.start(self._history)
        held = time.perf_counter() - start
        during = []
        while not self._heard:
            during.append(self.step())
            self._saver.poll()
        return held, during

    def save_and_wait(self) -> float:
        """Save the state and wait until it is stored; how long that took."""
        self.step()  # Another step's checkpoint: the same folder would be the same checkpoint.
        start = time.perf_counter()
        self._saver.start(self._history)
        self._saver.finish()
        return time.perf_counter() - start

    @property
    def state_bytes(self) -> int:
        """Size of the last checkpoint."""
        folders = [Path(event.folder) for event in self._heard if isinstance(event, CheckpointEvent)]
        return sum(file.stat().st_size for file in folders[-1].rglob("*") if file.is_file())


if __name__ == "__main__":
    answer_measurement(main)
