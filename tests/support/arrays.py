"""Distances between sets of arrays by name."""

import numpy as np


def frobenius(arrays: dict[str, np.ndarray]) -> float:
    """The norm of all of `arrays` together, in float64."""
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in arrays.values())))
