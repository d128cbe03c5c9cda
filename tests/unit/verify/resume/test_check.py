"""What the resume check makes of two runs, and the damage it does; the runs are made up."""

from copy import deepcopy
from pathlib import Path

import pytest

from crossmesh.verify.resume.check import STEPS, differing, judge_resumption, lost_or_twice
from crossmesh.verify.resume.job import flip_a_bit, step_of

LOSSES = [3.0 - 0.01 * step for step in range(STEPS)]


def run(started_at=(1,)):
    metrics = {"train/loss": [[step + 1, loss] for step, loss in enumerate(LOSSES)], "train/final_loss": [[STEPS, LOSSES[-1]]]}
    return {"losses": list(LOSSES), "adapter": "a", "started_at": list(started_at), "metrics": deepcopy(metrics)}


def measured(change=lambda found: None):
    found = {"undisturbed": run(), "disturbed": run((1, 7, 13)), "sound_checkpoint": 12, "reported": ["damaged"]}
    change(found)
    return {"torch": found}


def broken(change):
    return [limit.name.removeprefix("torch.") for limit in judge_resumption(measured(change)).limits if not limit.passed]


def test_runs_that_are_alike_to_the_bit_pass():
    assert judge_resumption(measured()).passed


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda found: found["disturbed"]["losses"].__setitem__(20, LOSSES[20] + 1e-15), ["losses_that_differ"]),
        (lambda found: found["disturbed"]["losses"].pop(), ["losses_that_differ"]),
        (lambda found: found["disturbed"].update(adapter="b"), ["adapters_that_differ"]),
        (lambda found: found["disturbed"]["metrics"].pop("train/final_loss"), ["metrics_that_differ"]),
        (lambda found: found["disturbed"]["metrics"]["train/final_loss"].append([STEPS, 1.0]), ["metric_steps_lost_or_twice"]),
        (lambda found: found["disturbed"].update(started_at=[1, 7]), ["continued_elsewhere", "starts"]),
        (lambda found: found["disturbed"].update(started_at=[1, 7, 16]), ["continued_elsewhere"]),
        (lambda found: found.update(reported=[]), ["damage_reported"]),
    ],
)
def test_each_fault_breaks_the_check(change, names):
    assert broken(change) == names


def test_a_step_that_mlflow_lost_or_has_twice_is_found():
    def lose(found):
        found["disturbed"]["metrics"]["train/loss"].pop(5)

    def double(found):
        found["disturbed"]["metrics"]["train/loss"].insert(5, [5, LOSSES[4]])

    assert broken(lose) == ["metric_steps_lost_or_twice", "logged_losses_that_differ"]
    assert broken(double) == ["metric_steps_lost_or_twice", "logged_losses_that_differ"]


def test_values_are_counted_by_step():
    assert lost_or_twice({"loss": [[1, 0.0], [2, 0.0], [3, 0.0]], "end": [[3, 1.0]]}, 3) == 0
    assert lost_or_twice({"loss": [[1, 0.0], [3, 0.0], [3, 0.0]]}, 3) == 2
    assert differing([1.0, 2.0], [1.0, 2.0, 3.0]) == 1


def test_one_bit_of_the_largest_file_is_flipped(tmp_path: Path):
    checkpoint = tmp_path / "step-00000012"
    (checkpoint / "state").mkdir(parents=True)
    (checkpoint / "manifest.json").write_bytes(b"{}")
    weights = checkpoint / "state" / "weights"
    weights.write_bytes(bytes(100))
    assert flip_a_bit(checkpoint) == weights
    assert sum(weights.read_bytes()) == 1
    assert len(weights.read_bytes()) == 100
    assert step_of(checkpoint) == 12
