import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from crossmesh.console import Console, format_seconds


@dataclass(frozen=True)
class Step:
    step: int
    steps: int
    loss: float
    seconds: float
    first: bool
    tokens_per_s: float


@dataclass(frozen=True)
class Text:
    text: str


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.21, "3.2 s"), (59.94, "59.9 s"), (59.96, "1 min 00 s"), (125.4, "2 min 05 s"), (3725, "1 h 02 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_without_a_terminal_steps_are_throttled_plain_lines_on_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr("crossmesh.console.time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    with Console().stage("train: torch") as stage:
        stage.hear(Text("loading [1/2]"))
        for step in range(1, 6):
            stage.hear(Step(step, 5, 2.0 / step, 90.0 if step == 1 else 29.0 + step, step == 1, 1234.5))
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[:2] == ["train: torch", "  loading [1/2]"]
    # A line every 5 s of a clock that ticks 3 s. The first step warms up, so its 90 s foretell nothing; after step 3 the mean of
    # 31 s and 32 s does.
    assert lines[2:-1] == [
        "  steps 1/5 loss 2.0000, 1,234 tokens/s",
        "  steps 3/5 loss 0.6667, 1,234 tokens/s, 1 min 03 s left",
        "  steps 5/5 loss 0.4000, 1,234 tokens/s",
    ]
    assert lines[-1] == "done in 18.0 s: train: torch"


def test_a_stage_that_fails_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), Console().stage("serve"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.splitlines()[-1].startswith("stopped after ")


def test_phases_each_begin_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().stage("evaluate") as stage:
        for phase in ("generate", "judge"):
            for done in range(5):
                stage.progress(phase, done, 4)
    lines = [line.split()[:2] for line in capsys.readouterr().err.splitlines()[1:-1]]
    assert lines == [["generate", "0/4"], ["generate", "4/4"], ["judge", "0/4"], ["judge", "4/4"]]


def test_json_is_the_last_line_of_stdout_and_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    Console().result("done", {"loss": 0.1234567890123, "adapter": "/a/b"}, "json")
    out = capsys.readouterr().out
    assert json.loads(out.splitlines()[-1]) == {"loss": 0.1234567890123, "adapter": "/a/b"}
    assert out.count("\n") == 1


def test_a_table_has_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    Console().result("demo: torch", {"final_loss": 0.123456789, "adapter": "/a/[b]"}, "table")
    out = capsys.readouterr().out
    assert "demo: torch" in out
    assert "0.123457" in out
    assert "/a/[b]" in out
