"""The loop: what it computes, when it stores, how it ends, and that a run in parts is the run in one piece."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from crossmesh.errors import InputError
from crossmesh.train.events import CheckpointEvent, EvaluationEvent, Event, StageEvent, StepEvent
from crossmesh.train.launch import TrainResult
from crossmesh.train.loop import DivergedError, LoopResult, steady
from quadratic import STEPS, Training, batch_of, curve, names


def checkpoints(events: list[Event]) -> list[int]:
    return [event.step for event in events if isinstance(event, CheckpointEvent)]


def test_first_losses_are_those_of_the_arithmetic(tmp_path: Path) -> None:
    result = Training(tmp_path / "run").run()
    # Batch 0 holds tokens 0..4 and 1..5, mean 2.5: four residuals of -0.25 from a zero vector.
    assert result.history[0].loss == pytest.approx(4 * 0.25**2, rel=1e-6)
    assert result.history[0].learning_rate == 0.1
    assert result.history[0].loss_tokens == 6
    assert (result.history[0].real_tokens, result.history[0].padded_tokens) == (10, 16)
    assert result.history[0].packing_efficiency == 0.625
    assert [event.step for event in result.history] == list(range(1, STEPS + 1))
    assert result.ended == "finished"


def test_checkpoints_come_at_the_cadence_and_at_the_end_and_old_ones_go(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    training.run()
    assert checkpoints(training.events) == [5, 10, 12]
    assert names(tmp_path / "run") == ["step-00000010", "step-00000012"]


def test_checkpoints_also_come_when_minutes_have_passed(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", every=100, minutes=1e-9)
    training.run()
    assert checkpoints(training.events) == list(range(1, STEPS + 1))
    training = Training(tmp_path / "other", every=100, minutes=60)
    training.run()
    assert checkpoints(training.events) == [STEPS]


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("cause", ["stopped", "preempted"])
@pytest.mark.parametrize("stop_after", [1, 4, 5, 11])
def test_an_interrupted_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    tmp_path: Path, stop_after: int, cause: str, processes: int
) -> None:
    whole = Training(tmp_path / "whole")
    expected = whole.run()
    part = Training(tmp_path / "parts", stop_after=stop_after, cause=cause, processes=processes)
    stopped = part.run()
    assert stopped.ended == cause
    assert len(stopped.history) == stop_after
    assert checkpoints(part.events)[-1] == stop_after
    rest = Training(tmp_path / "parts", processes=processes)
    result = rest.run()
    assert curve(result) == curve(expected)
    assert np.array_equal(rest.backend.weight, whole.backend.weight)
    assert np.array_equal(rest.backend.momentum, whole.backend.momentum)
    # A listener of the second start alone has the whole curve too.
    assert [event.step for event in rest.events if isinstance(event, StepEvent)] == list(range(1, STEPS + 1))
    assert [event.step for event in result.history if event.first] == [1, stop_after + 1]
    assert (len(names(tmp_path / "parts")), names(tmp_path / "parts")[-1]) == (2, "step-00000012")


def test_a_stop_before_the_first_step_leaves_nothing_half_done(tmp_path: Path) -> None:
    assert Training(tmp_path / "run", stop_after=0).run() == LoopResult((), "stopped")
    assert names(tmp_path / "run") == []


def test_a_stop_at_the_last_step_is_the_end(tmp_path: Path) -> None:
    assert Training(tmp_path / "run", stop_after=STEPS).run().ended == "finished"


def test_starting_a_finished_run_again_takes_no_step(tmp_path: Path) -> None:
    first = Training(tmp_path / "run")
    done = first.run()
    again = Training(tmp_path / "run")
    assert again.run() == done
    assert np.array_equal(again.backend.weight, first.backend.weight)
    assert not [event for event in again.events if isinstance(event, StageEvent) and event.text.startswith("first step")]


def test_a_checkpoint_of_another_trial_is_refused(tmp_path: Path) -> None:
    Training(tmp_path / "run", stop_after=5).run()
    with pytest.raises(InputError, match="step-00000005 is a checkpoint of another trial"):
        Training(tmp_path / "run", identity="you").run()


def test_a_loss_that_is_no_number_stops_with_its_rows_written_down_and_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"diverged at step 7: loss nan.*row-6-0, row-6-1; all are in .*diverged\.json.*learning_rate"):
        Training(tmp_path / "run", poisoned=7).run()
    record = json.loads((tmp_path / "diverged.json").read_text())
    assert (record["step"], record["row_ids"], record["loss"]) == (7, ["row-6-0", "row-6-1"], "nan")
    assert record["grad_norm"] > 0
    assert names(tmp_path / "run") == ["step-00000005"]


def test_held_out_loss_is_weighted_by_tokens(tmp_path: Path) -> None:
    training = Training(tmp_path / "run", held_out=(batch_of(0), batch_of(40)))
    training.run()
    evaluations = [event for event in training.events if isinstance(event, EvaluationEvent)]
    assert [event.step for event in evaluations] == [5, 10, 12]
    losses = [float(((training.backend.weight - np.float32(mean / 10)) ** 2).sum()) for mean in (2.5, 42.5)]
    assert evaluations[-1].loss == pytest.approx(sum(losses) / 2, rel=1e-6)


def test_steady_throughput_leaves_out_the_first_step_of_each_start() -> None:
    def step(number: int, seconds: float, first: bool = False) -> StepEvent:
        return StepEvent(number, 6, 1.0, 1.0, 0.1, 10, 100, 200, seconds, first)

    history = [step(1, 50.0, True), step(2, 1.0), step(3, 2.0), step(4, 40.0, True), step(5, 1.0), step(6, 4.0)]
    assert steady(history, lambda event: event.tokens_per_s) == 75.0  # median of 100, 50, 100, 25
    assert steady(history[:1], lambda event: event.tokens_per_s) == 2.0
    assert history[0].padded_tokens_per_s == 4.0


def test_steps_without_some_slices_say_nothing_of_the_speed_on_all_and_cost_less(tmp_path: Path) -> None:
    def step(number: int, seconds: float, missing: int) -> StepEvent:
        return StepEvent(number, 5, 1.0, 1.0, 0.1, 10, 100, 200, seconds, False, missing)

    history = tuple(step(number, *values) for number, values in enumerate([(1.0, 0), (2.0, 1), (2.0, 1), (2.0, 1), (1.0, 0)], 1))
    result = TrainResult(tmp_path, "a", "d", history)
    assert result.tokens_per_s == 100.0
    assert TrainResult(tmp_path, "a", "d", history[1:4]).tokens_per_s == 50.0
    assert [result.steady_missing_slices, TrainResult(tmp_path, "a", "d", history[1:4]).steady_missing_slices] == [0, 1]
    # All slices only for a step that compiles: the others say what it was trained at.
    late = TrainResult(tmp_path, "a", "d", (*history[1:4], replace(history[4], seconds=50.0, first=True)))
    assert (late.tokens_per_s, late.steady_missing_slices) == (50.0, 1)
    assert (result.seconds, result.rented_s(2)) == (8.0, 5.0)
