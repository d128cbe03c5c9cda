import pytest

from crossmesh.config.training import OptimSpec
from crossmesh.train.schedule import learning_rate


def rates(optim: OptimSpec) -> list[float]:
    return [learning_rate(step, optim) for step in range(optim.steps)]


def test_warm_up_starts_above_zero_and_ends_at_the_peak() -> None:
    optim = OptimSpec(steps=30, learning_rate=3e-3, warmup_steps=100)
    assert optim.warmup == 3
    assert rates(optim)[:4] == pytest.approx([1e-3, 2e-3, 3e-3, 3e-3], rel=1e-15)


def test_cosine_passes_the_middle_and_ends_at_the_final_fraction() -> None:
    optim = OptimSpec(steps=5, learning_rate=1.0, final_fraction=0.2, warmup_steps=0)
    assert rates(optim) == pytest.approx([1.0, 0.8828427124746190, 0.6, 0.3171572875253810, 0.2], rel=1e-14)


def test_last_step_is_at_the_final_fraction_after_warm_up_too() -> None:
    optim = OptimSpec(steps=20, learning_rate=2.0, final_fraction=0.1, warmup_steps=2)
    assert rates(optim)[0] == 1.0
    assert rates(optim)[-1] == pytest.approx(0.2, rel=1e-15)


def test_short_runs() -> None:
    assert rates(OptimSpec(steps=1, learning_rate=1e-3)) == [1e-3]
    assert rates(OptimSpec(steps=2, learning_rate=1e-3, final_fraction=0.5)) == [1e-3, 5e-4]


@pytest.mark.parametrize("step", [-1, 30])
def test_a_step_outside_the_run_is_a_bug(step: int) -> None:
    with pytest.raises(ValueError, match="outside a run of 30 steps"):
        learning_rate(step, OptimSpec(steps=30))
