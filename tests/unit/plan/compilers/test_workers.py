import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crossmesh.environments import package_root
from crossmesh.errors import CrossmeshError, InputError
from crossmesh.plan.compilers import workers
from crossmesh.plan.compilers.workers import run_compiler_worker

WORKER = """
import os, time
from crossmesh.errors import InputError
from crossmesh.plan.compilers.workers import answer_questions

def answer(question):
    print("noise on stdout", flush=True)
    if question["do"] == "refuse":
        raise InputError("This cannot be compiled.")
    if question["do"] == "die":
        os.write(2, b"the last words")
        os._exit(7)
    if question["do"] == "hang":
        open(question["file"], "w").write(str(os.getpid()))
        time.sleep(600)
    return {"twice": 2 * question["value"]}

if __name__ == "__main__":
    answer_questions("tpu", answer)
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny_worker.py").write_text(WORKER)
    monkeypatch.setitem(workers._MODULES, "tpu", "tiny_worker")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("CROSSMESH_PYTHON_PLAN_AOT_TPU", raising=False)
    return tmp_path / "logs" / "worker.log"


def ignore(index: int, seconds: float) -> None:
    del index, seconds


def test_answers_come_one_by_one_with_versions_and_noise_goes_to_the_log(log: Path) -> None:
    parts = list(run_compiler_worker("tpu", [{"do": "", "value": 4}, {"do": "", "value": 5}], log, ignore))
    assert [(part.index, part.answer) for part in parts] == [(0, {"twice": 8}), (1, {"twice": 10})]
    assert parts[0].versions["jax"] == "0.10.2"
    assert log.read_text().count("noise on stdout") == 2


def test_what_is_finished_before_a_failure_is_there(log: Path) -> None:
    answers = run_compiler_worker("tpu", [{"do": "", "value": 4}, {"do": "refuse"}], log, ignore)
    assert next(answers).answer == {"twice": 8}
    with pytest.raises(InputError, match="This cannot be compiled"):
        next(answers)


def test_a_worker_that_dies_is_told_with_its_last_words(log: Path) -> None:
    with pytest.raises(CrossmeshError, match=r"ended with code 7 and no answer.*\nnoise on stdout\nthe last words"):
        list(run_compiler_worker("tpu", [{"do": "die"}], log, ignore))


def test_an_interrupted_plan_leaves_no_worker(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "pid"

    def interrupt(index: int, seconds: float) -> None:
        if file.exists() and file.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_compiler_worker("tpu", [{"do": "hang", "file": str(file)}], log, interrupt))
    assert not Path(f"/proc/{file.read_text()}").exists()


def test_a_killed_driver_leaves_no_worker(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        "from pathlib import Path; from crossmesh.plan.compilers import workers; workers._MODULES['tpu'] = 'tiny_worker'; "
        f"list(workers.run_compiler_worker('tpu', [{{'do': 'hang', 'file': {str(file)!r}}}], Path({str(log)!r}), lambda *_: None))"
    )
    path = f"{package_root()}:{tmp_path}"
    driver = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    try:
        until(lambda: file.exists() and bool(file.read_text()))
    finally:
        driver.kill()
        driver.wait()
    until(lambda: not Path(f"/proc/{file.read_text()}").exists())


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)
