"""The script for chips runs without one, tiny, so that it cannot rot between two machines that have one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.full]


def test_the_script_trains_on_both_backends_and_judges_their_losses(checkout: Path) -> None:
    command = [sys.executable, str(checkout / "tests" / "hardware" / "train_on_chip.py"), "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["passed"]
    figures = said["figures"]
    assert set(figures) == {"torch plain float32", "torch sdpa bfloat16", "jax plain float32"}
    assert figures["torch plain float32"]["difference"] == 0
    assert 0 < figures["jax plain float32"]["difference"] < 1e-3
    assert 0 < figures["torch sdpa bfloat16"]["difference"] < 2e-2
    assert figures["torch plain float32"]["losses"][-1] != figures["torch plain float32"]["losses"][0]
