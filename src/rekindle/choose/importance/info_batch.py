"""InfoBatch: leave out some of the samples with low losses, and weight the others of them higher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_integer, check_share
from rekindle.choose.importance.systematic_sampling import share_of
from rekindle.choose.scores import Scores, stretches


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
        size, mean = len(scores), scores.mean_loss

        def is_learnt(part: slice) -> NDArray[np.bool_]:
            return (scores.epoch[part] >= 0) & (scores.loss[part] < mean)

        learnt = sum(int(np.count_nonzero(is_learnt(part))) for part in stretches(size))
        kept = max(1, learnt - share_of(learnt, self.ratio * pruned))
        if not learnt or kept == learnt:
            return np.arange(size), np.ones(size, dtype=np.float32)
        order, before = scores.order(epoch, learnt), 0
        ids, weights = [], []
        for part in stretches(size):
            weight = np.ones(part.stop - part.start, dtype=np.float32)
            here = np.flatnonzero(is_learnt(part))
            is_kept = order.forward(np.arange(before, before + len(here))) < kept
            weight[here] = np.where(is_kept, learnt / kept, 0)
            chosen = np.flatnonzero(weight)
            ids.append(chosen + part.start)
            weights.append(weight[chosen])
            before += len(here)
        return np.concatenate(ids), np.concatenate(weights)
