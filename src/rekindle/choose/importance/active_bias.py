"""Active Bias: samples whose predictions vary count for more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_at_least, check_integer
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
        check_integer("warmup", self.warmup, 0)
        check_at_least("smoothness", self.smoothness, 0)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples, weighted."""
        size = len(scores)
        if epoch < self.warmup:
            return np.arange(size), None
        total, measured = 0.0, 0
        for part in stretches(size):
            spread = _spread(scores, part)
            total, measured = total + float(np.nansum(spread)), measured + int(np.isfinite(spread).sum())
        mean = total / max(measured, 1)
        if mean == 0:
            return np.arange(size), None
        weights = np.empty(size, dtype=np.float32)
        for part in stretches(size):  # What was not measured twice counts as the mean: that of all stays it.
            spread = _spread(scores, part)
            weights[part] = (np.where(np.isnan(spread), mean, spread) / mean + self.smoothness) / (
                1 + self.smoothness
            )
        return np.arange(size), weights


def _spread(scores: Scores, part: slice) -> NDArray[np.float64]:
    """sqrt(Var + Var² / (n − 1)) of some samples; NaN where fewer than two measurements are."""
    degrees = scores.count[part].astype(np.float64) - 1
    degrees[degrees < 1] = np.nan
    variance = scores.squares[part] / degrees
    found: NDArray[np.float64] = np.sqrt(variance + variance**2 / degrees)
    return found
