"""Active Bias: samples whose predictions vary count for more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import checked_integer, checked_number
from rekindle.choose.sample_ids import all_ids
from rekindle.choose.scores import Scores, stretches


@dataclass
class ActiveBias(ImportanceMethod):
    """Weights every sample by how much the probability of its right class has varied so far.

    Chang, Learned-Miller, McCallum: "Active Bias: Training More Accurate Neural Networks by Emphasizing High
    Variance Samples", NIPS'17 (SGD-WPV). The weight is sqrt(Var + Var² / (n − 1)) + ε over the n epochs in
    which the sample was measured, scaled to a mean of 1 in each batch.

    Args:
        warmup: For how many epochs all weights are 1 (a variance takes at least two).
        smoothness: ε, as a multiple of the mean of the first term over all samples: the paper's is 1.

    Weakness: it leaves no sample out, so it saves no time; variances take some epochs to estimate.

    """

    reads = frozenset({"count", "mean", "squares"})
    warmup: int = 3
    smoothness: float = 1.0
    even_batches = True

    def __post_init__(self) -> None:
        self.warmup = checked_integer("warmup", self.warmup, 0)
        self.smoothness = checked_number("smoothness", self.smoothness, 0)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples, weighted."""
        size = len(scores)
        if epoch < self.warmup:
            return all_ids(size), None
        weights, total, measured = np.empty(size, dtype=np.float32), 0.0, 0
        for part in stretches(size):
            is_measured = scores.count[part] > 1
            spread = _spread(scores.squares[part], scores.count[part])
            spread[~is_measured] = 0
            total, measured = total + float(spread.sum()), measured + int(np.count_nonzero(is_measured))
            weights[part] = spread
        mean = total / max(measured, 1)
        if mean == 0:
            return all_ids(size), None
        for part in stretches(size):
            weight = weights[part]
            if measured < size:  # What was not measured twice counts as the mean: that of all stays it.
                weight[scores.count[part] < 2] = mean
            weight /= np.float32(mean)
            weight += np.float32(self.smoothness)
            weight /= np.float32(1 + self.smoothness)
        return all_ids(size), weights


def _spread(squares: NDArray[np.floating], count: NDArray[np.signedinteger]) -> NDArray[np.float64]:
    """sqrt(Var + Var² / (n − 1)) of some samples; that of none measured less than twice means anything."""
    degrees = np.subtract(count, 1, dtype=np.float64)
    np.maximum(degrees, 1, out=degrees)
    variance: NDArray[np.float64] = squares / degrees
    found = variance * variance
    found /= degrees
    found += variance
    np.sqrt(found, out=found)
    return found
