"""A node that is taken away with notice: the run stores a checkpoint in time and goes on on another node."""

from pathlib import Path
from typing import Any

import pytest

from emulated_cluster import emulated_cluster, gpu_node

pytestmark = [pytest.mark.integration, pytest.mark.full]


def test_notice_of_a_preemption_makes_a_checkpoint_and_the_run_goes_on_elsewhere(tiny: Any, tmp_path: Path) -> None:
    steps = 120  # Ray looks for notices every five seconds.
    with emulated_cluster(gpu_node("gpu_1xh100"), gpu_node("gpu_1xh100")) as cluster:
        environment = {**cluster.environment, "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "1"}  # Ours leave it out on a CPU.
        process = tiny.start(tmp_path, steps=steps, hardware="gpu_1xh100", drain_at=6, environment=environment)
        lines: list[dict[str, Any]] = list(tiny.said(process))
        assert process.wait(timeout=60) == 0
    assert [line for line in lines if line.get("kind") == "WarningEvent" and "retry.preemptions" in line["text"]]
    starts = sorted({line["step"] for line in lines if line.get("kind") == "StepEvent" and line["first"]})
    assert starts[0] == 1
    assert 6 < starts[1] <= steps
    stored = [line["step"] for line in lines if line.get("kind") == "CheckpointEvent"]
    assert starts[1] - 1 in stored
