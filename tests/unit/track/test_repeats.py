from crossmesh.track.repeats import RATE, TAG_OF, TAG_ROUND, TAG_STEPS, sound_rounds
from crossmesh.track.tracked_run import TrackedRun


def repeat(of, round_, steps=8, **load):
    tags = {TAG_OF: of, TAG_ROUND: round_, TAG_STEPS: str(steps)}
    metrics = {RATE: 100.0, **{f"load/{key}": value for key, value in load.items()}}
    return TrackedRun(f"{of}{round_}", "repeat", "FINISHED", tags, {}, metrics)


def test_rounds_count_where_every_run_was_repeated_alike_and_without_load():
    found = {
        "a": [repeat("a", "s 1"), repeat("a", "s 2"), repeat("a", "s 3", steps=4), repeat("a", "s 4"), repeat("a", "t 1")],
        "b": [repeat("b", "s 1"), repeat("b", "s 2", steal_percent=9.0), repeat("b", "s 3"), repeat("b", "s 4", others_percent=2.0)],
    }
    assert sound_rounds(["a", "b"], found, 8) == 2  # s 1 and s 4.
    assert sound_rounds(["a"], found, 8) == 4
    assert sound_rounds(["a", "c"], found, 8) == 0
