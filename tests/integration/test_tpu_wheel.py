"""The facts that TPU settings are held against are those of the locked wheel, which is fetched and read, not installed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_wheel import facts_of


@pytest.mark.full
def test_the_kept_facts_are_what_the_wheel_says(checkout: Path, tmp_path: Path) -> None:
    found = re.search(r"^tpu-inference==(\S+)", (checkout / "requirements" / "tpu-serve.txt").read_text(), re.MULTILINE)
    assert found is not None
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", str(tmp_path)]
    subprocess.run([*command, f"tpu-inference=={found[1]}"], check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    assert facts_of(wheel) == json.loads((checkout / "tests" / "unit" / "serve" / "vllm" / "tpu_inference.json").read_text())
