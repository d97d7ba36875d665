"""Active Bias: samples whose predictions vary count for more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_at_least, check_integer
from rekindle.choose.scores import Scores


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
        ids, measured = np.arange(len(scores)), scores.count >= 2
        if epoch < self.warmup or not measured.any():
            return ids, None
        variance = scores.variance
        spread = np.sqrt(variance + variance**2 / np.maximum(scores.count - 1, 1))
        mean = spread[measured].mean()
        weights = np.where(measured, spread, mean) + self.smoothness * mean
        return ids, weights / weights.mean() if mean > 0 else None
