"""InfoBatch: leave out some of the samples with low losses, and weight the others of them higher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_integer, check_share
from rekindle.choose.importance.systematic_sampling import share_of, smallest
from rekindle.choose.scores import Scores


@dataclass
class InfoBatch(ImportanceMethod):
    """Leaves out a random share of the samples whose last loss is below the mean, without bias.

    Qin et al.: "InfoBatch: Lossless Training Speed Up by Unbiased Dynamic Data Pruning", ICLR'24. Those of
    them that are kept get the weight (how many there are) / (how many are kept), so every sample counts for 1
    on average, exactly, also where the share is not an integer number of samples. Samples that were
    never measured are always kept.

    Args:
        epochs: How many epochs the training has.
        ratio: The share that is left out of the samples below the mean (ρ).
        anneal: The share of the epochs, at the end, in which nothing is left out. If that is not an
            integer, the epoch in which it begins leaves out in proportion.

    Weakness: the saving depends on the distribution of losses and not on a budget; the weights make steps
    larger, so a learning rate at the limit of stability has to be lowered.

    """

    reads = frozenset()
    epochs: int
    ratio: float = 0.5
    anneal: float = 0.125

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs, 1)
        check_share("ratio", self.ratio, zero=True)
        check_share("anneal", self.anneal, zero=True)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples at or above the mean loss, and some of those below it."""
        # The part of this epoch that comes before the annealing.
        pruned = min(1.0, max(0.0, self.epochs * (1 - self.anneal) - epoch))
        learnt = np.flatnonzero(scores.known & (scores.loss < scores.mean_loss))
        kept = max(1, len(learnt) - share_of(len(learnt), self.ratio * pruned))
        weights = np.ones(len(scores), dtype=np.float32)
        if not len(learnt) or kept == len(learnt):
            return np.arange(len(scores)), weights
        weights[learnt] = len(learnt) / kept
        chosen = np.ones(len(scores), dtype=bool)
        chosen[learnt[~smallest(scores.uniforms(epoch, ids=learnt), kept)]] = False
        return np.flatnonzero(chosen), weights[chosen]
