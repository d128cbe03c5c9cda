"""The gradient that a backend computes, taken out through its own interface.

With AdamW's epsilon far above any gradient, no memory in the first moment and no decay, a step is `rate / epsilon` times the gradient;
what a step has moved, divided by that, is the gradient. So the very step that trains is what is compared, on either framework.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from crossmesh.config.training import OptimSpec
from crossmesh.data.batches import PackedBatch
from crossmesh.train.backend import Backend, TrainingSetup

Arrays = dict[str, npt.NDArray[np.float32]]

GAIN = 0.1
"""What a gradient is multiplied with to make a step."""
_EPSILON = 1e8


def plain_descent(setup: TrainingSetup) -> TrainingSetup:
    """The same setup with steps of `GAIN` times the gradient, two of them."""
    optim = OptimSpec(steps=2, learning_rate=GAIN * _EPSILON, final_fraction=1.0, weight_decay=0.0, beta1=0.0, epsilon=_EPSILON)
    return replace(setup, optim=optim)


def second_gradient(backend: Backend, batch: PackedBatch) -> Arrays:
    """The gradient after one step of plain descent on `batch`, by array name; before it B is zero, and A would have none.

    `backend` was initialised with `plain_descent`.
    """
    backend.step(batch)
    before = backend.export()
    backend.step(batch)
    return moved(before, backend.export())


def moved(before: Mapping[str, npt.NDArray[np.float32]], after: Mapping[str, npt.NDArray[np.float32]]) -> Arrays:
    """The gradient of a step of plain descent from `before` to `after`."""
    return {name: (array - after[name]) / np.float32(GAIN) for name, array in before.items()}
