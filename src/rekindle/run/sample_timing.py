"""The cost of loading single samples, where it is asked for (by the `io` criterion)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from rekindle.core.samples import Index, Sample
from rekindle.run.bad_samples import FailedSample


class Cost(NamedTuple):
    """Seconds in the dataset, NaN for a sample that failed or was cached; bytes read, −1 if unknown."""

    seconds: float
    nbytes: int


NOT_LOADED = Cost(math.nan, -1)


def cost(dataset: object, index: Index, sample: Sample, seconds: float) -> Cost:
    """The cost of a sample. A dataset with `sample_nbytes(index)` knows how much it reads."""
    if type(sample) is FailedSample:
        return NOT_LOADED
    read_nbytes = getattr(dataset, "sample_nbytes", None)
    return Cost(seconds, _nbytes(sample) if read_nbytes is None else int(read_nbytes(index)))


def _nbytes(value: Sample) -> int:
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
