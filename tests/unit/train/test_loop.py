"""The loop against a backend that does real arithmetic: momentum descent on a quadratic that depends on the rows of each step."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from crossmesh.data.batches import PackedBatch, Row
from crossmesh.errors import InputError
from crossmesh.spec.experiment import ExperimentSpec, OptimSpec
from crossmesh.train.backend import FloatArray, Saving, StepMetrics, TrainingSetup
from crossmesh.train.checkpoint import CheckpointStore
from crossmesh.train.events import CheckpointEvent, EvaluationEvent, Event, StageEvent, StepEvent, WarningEvent
from crossmesh.train.loop import DivergedError, LoopResult, Plan, run, steady_tokens_per_s
from crossmesh.train.schedule import learning_rate
from random_rows import unpacked

STEPS = 12


class QuadraticBackend:
    """Fits a vector to the mean token of each batch; state is the vector, its momentum and the step count."""

    def init(self, setup: TrainingSetup) -> None:
        self.optim = setup.optim
        self.weight = np.zeros(4, np.float32)
        self.momentum = np.zeros(4, np.float32)
        self.count = 0
        self.poisoned: int | None = None

    def _residual(self, batch: PackedBatch) -> FloatArray:
        return (self.weight - np.float32(batch.tokens[batch.segment_ids > 0].mean() / 10)).astype(np.float32)

    def step(self, batch: PackedBatch) -> StepMetrics:
        residual = self._residual(batch)
        rate = learning_rate(self.count, self.optim)
        self.momentum = (np.float32(0.9) * self.momentum + residual).astype(np.float32)
        self.weight = (self.weight - np.float32(rate) * self.momentum).astype(np.float32)
        self.count += 1
        loss = math.nan if self.count == self.poisoned else float((residual**2).sum())
        return StepMetrics(loss, float(np.linalg.norm(residual)), rate, batch.loss_tokens)

    def evaluate(self, batch: PackedBatch) -> StepMetrics:
        return StepMetrics(float((self._residual(batch) ** 2).sum()), 0.0, 0.0, batch.loss_tokens)

    def agree(self, flag: bool) -> bool:
        return flag

    def save_state(self, folder: Path) -> Saving:
        np.savez(folder / "state.npz", weight=self.weight, momentum=self.momentum, count=self.count)
        return lambda: None

    def load_state(self, folder: Path) -> None:
        with np.load(folder / "state.npz") as state:
            self.weight, self.momentum, self.count = state["weight"], state["momentum"], int(state["count"])

    def export(self) -> dict[str, FloatArray]:
        return {"w": self.weight}


def batch_of(step: int) -> PackedBatch:
    rows = [
        Row(f"row-{step}-{index}", np.arange(step + index, step + index + 5, dtype=np.int32), np.array([False, False, True, True, True]))
        for index in range(2)
    ]
    return unpacked(rows, 1, 8)


def setup(tmp_path: Path) -> TrainingSetup:
    optim = OptimSpec(steps=STEPS, learning_rate=0.1)
    return TrainingSetup.of(ExperimentSpec(optim=optim), tmp_path, tmp_path)


def train(
    tmp_path: Path,
    *,
    folder: str = "run",
    stop_after: int | None = None,
    identity: str = "me",
    every: int = 5,
    keep: int = 2,
    poisoned: int | None = None,
    held_out: tuple[PackedBatch, ...] = (),
) -> tuple[LoopResult, list[Event], QuadraticBackend]:
    events: list[Event] = []
    backend = QuadraticBackend()
    done = {"steps": 0}

    def emit(event: Event) -> None:
        events.append(event)
        if isinstance(event, StepEvent):
            done["steps"] = event.step
        if isinstance(event, StageEvent) and event.text.startswith("first step"):
            backend.poisoned = poisoned

    result = run(
        backend,
        setup(tmp_path),
        batch_of,
        Plan(STEPS, every, held_out, evaluate_every=every if held_out else 0),
        CheckpointStore(tmp_path / folder, identity, keep),
        emit,
        lambda: stop_after is not None and done["steps"] >= stop_after,
    )
    return result, events, backend


def curve(result: LoopResult) -> list[tuple[int, float, float, float]]:
    return [(event.step, event.loss, event.grad_norm, event.learning_rate) for event in result.history]


def steps_on_disk(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_first_losses_are_those_of_the_arithmetic(tmp_path: Path) -> None:
    result, _, _ = train(tmp_path)
    # Batch 0 holds tokens 0..4 and 1..5, mean 2.5: four residuals of -0.25 from a zero vector.
    assert result.history[0].loss == pytest.approx(4 * 0.25**2, rel=1e-6)
    assert result.history[0].learning_rate == 0.1
    assert result.history[0].loss_tokens == 6
    assert result.history[0].real_tokens == 10
    assert [event.step for event in result.history] == list(range(1, STEPS + 1))
    assert result.finished


def test_checkpoints_come_at_the_cadence_and_at_the_end_and_old_ones_go(tmp_path: Path) -> None:
    _, events, _ = train(tmp_path)
    assert [event.step for event in events if isinstance(event, CheckpointEvent)] == [5, 10, 12]
    assert steps_on_disk(tmp_path / "run") == ["step-00000010", "step-00000012"]


@pytest.mark.parametrize("stop_after", [1, 4, 5, 11])
def test_a_stopped_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, stop_after: int) -> None:
    whole, _, whole_backend = train(tmp_path, folder="whole")
    part, events, _ = train(tmp_path, folder="parts", stop_after=stop_after)
    assert not part.finished
    assert len(part.history) == stop_after
    assert [event.step for event in events if isinstance(event, CheckpointEvent)][-1] == stop_after
    rest, events, backend = train(tmp_path, folder="parts")
    assert curve(rest) == curve(whole)
    assert np.array_equal(backend.weight, whole_backend.weight)
    assert np.array_equal(backend.momentum, whole_backend.momentum)
    # A listener of the second start alone has the whole curve too.
    assert [event.step for event in events if isinstance(event, StepEvent)] == list(range(1, STEPS + 1))
    assert [event.step for event in rest.history if event.first] == [1, stop_after + 1]


def test_a_stop_before_the_first_step_leaves_nothing_half_done(tmp_path: Path) -> None:
    result, _, _ = train(tmp_path, stop_after=0)
    assert result == LoopResult((), finished=False)
    assert not (tmp_path / "run").exists()


def test_starting_a_finished_run_again_takes_no_step(tmp_path: Path) -> None:
    first, _, backend = train(tmp_path)
    again, events, same = train(tmp_path)
    assert again == first
    assert np.array_equal(same.weight, backend.weight)
    assert not [event for event in events if isinstance(event, StageEvent) and event.text.startswith("first step")]


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


@pytest.mark.parametrize("name", ["state/state.npz", "manifest.json"])
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, Path.unlink])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(tmp_path: Path, name: str, damage: object) -> None:
    whole, _, _ = train(tmp_path, folder="whole")
    train(tmp_path, stop_after=10)
    damage(tmp_path / "run" / "step-00000010" / name)  # type: ignore[operator]
    result, events, _ = train(tmp_path)
    warnings = [event.text for event in events if isinstance(event, WarningEvent)]
    assert len(warnings) == 1
    assert warnings[0].startswith("The checkpoint after step 10 is damaged")
    assert [event.step for event in result.history if event.first] == [1, 6]
    assert curve(result) == curve(whole)
    # Step 10 was stored again, sound, and the damaged one is kept aside.
    assert [entry for entry in steps_on_disk(tmp_path / "run") if not entry.startswith("damaged-")] == ["step-00000010", "step-00000012"]
    assert any(entry.startswith("damaged-00000010-") for entry in steps_on_disk(tmp_path / "run"))


def test_a_changed_loss_in_the_manifest_is_noticed(tmp_path: Path) -> None:
    train(tmp_path, stop_after=5)
    manifest = tmp_path / "run" / "step-00000005" / "manifest.json"
    contents = json.loads(manifest.read_text())
    contents["contents"]["history"][2]["loss"] = 0.5
    manifest.write_text(json.dumps(contents))
    _, events, _ = train(tmp_path)
    assert next(event.text for event in events if isinstance(event, WarningEvent)).startswith("The checkpoint after step 5 is damaged")


def test_a_half_written_checkpoint_is_never_seen(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run", "me", 2)
    step = StepEvent(1, 2, 0.5, 1.0, 0.1, 3, 4, 1.0, True)

    def fail(folder: Path) -> None:
        (folder / "state.npz").write_bytes(b"half")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        store.save((step,), fail)
    assert store.newest(pytest.fail) is None
    assert steps_on_disk(tmp_path / "run") == []


def test_a_checkpoint_of_another_trial_is_refused(tmp_path: Path) -> None:
    train(tmp_path, stop_after=5)
    with pytest.raises(InputError, match="step-00000005 is a checkpoint of another trial"):
        train(tmp_path, identity="you")


def test_a_loss_that_is_no_number_stops_with_the_rows_and_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"diverged at step 7: loss nan.*row-6-0, row-6-1.*optim\.learning_rate"):
        train(tmp_path, poisoned=7)
    assert steps_on_disk(tmp_path / "run") == ["step-00000005"]


def test_held_out_loss_is_weighted_by_tokens(tmp_path: Path) -> None:
    _, events, backend = train(tmp_path, held_out=(batch_of(0), batch_of(40)))
    evaluations = [event for event in events if isinstance(event, EvaluationEvent)]
    assert [event.step for event in evaluations] == [5, 10, 12]
    losses = [float(((backend.weight - np.float32(mean / 10)) ** 2).sum()) for mean in (2.5, 42.5)]
    assert evaluations[-1].loss == pytest.approx(sum(losses) / 2, rel=1e-6)


def test_steady_throughput_leaves_out_the_first_step_of_each_start() -> None:
    def step(number: int, seconds: float, first: bool = False) -> StepEvent:
        return StepEvent(number, 6, 1.0, 1.0, 0.1, 10, 100, seconds, first)

    history = [step(1, 50.0, True), step(2, 1.0), step(3, 2.0), step(4, 40.0, True), step(5, 1.0), step(6, 4.0)]
    assert steady_tokens_per_s(history) == 75.0  # median of 100, 50, 100, 25
    assert steady_tokens_per_s(history[:1]) == 2.0
