"""What loading single samples costs, where somebody wants to know (the `io` criterion does)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from rekindle.run.failure import Failure


class Cost(NamedTuple):
    """Seconds in the data set, NaN for a sample that failed; bytes, −1 if nobody can tell."""

    seconds: float
    nbytes: int


def cost(dataset: Any, index: Any, sample: Any, seconds: float) -> Cost:
    """What a sample took. A data set with `sample_nbytes(index)`, or a source, says how much it reads."""
    if type(sample) is Failure:
        return Cost(math.nan, -1)
    source = getattr(dataset, "source", None)
    tell = getattr(dataset, "sample_nbytes", None) or getattr(source, "nbytes", None)
    return Cost(seconds, _nbytes(sample) if tell is None else int(tell(index)))


def _nbytes(value: Any) -> int:
    """The bytes of the tensors, arrays, strings and bytes in a sample."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    if isinstance(value, dict):
        return sum(_nbytes(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_nbytes(part) for part in value)
    return 0
