"""The driver imports no framework, whatever it does: a TPU host is locked by whoever imports first, and imports cost seconds."""

from typing import Any

import pytest

pytestmark = pytest.mark.integration


def test_training_leaves_the_driver_without_frameworks(tiny: Any, tiny_training: list[dict[str, Any]]) -> None:
    assert tiny_training[-1] == {"loaded": []}
    assert len(tiny_training[-2]["losses"]) == tiny.STEPS
