"""Percentiles of values among each other, the same for equal values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def percentiles(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """The share of values below each one, half of the equal ones included: above 0 and below 1.

    >>> percentiles(np.array([5.0, 1.0, 5.0, 9.0])).tolist()
    [0.5, 0.125, 0.5, 0.875]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - counts / 2
    return np.asarray(middle[inverse] / max(len(values), 1))
