"""InfoBatch: leave out some of the samples with low losses, and weight the others of them higher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import checked_integer, checked_share
from rekindle.choose.importance.systematic_sampling import share_of
from rekindle.choose.planned_rows import constant
from rekindle.choose.sample_ids import all_ids, ids_for
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
        self.epochs = checked_integer("epochs", self.epochs, 1)
        self.ratio = checked_share("ratio", self.ratio, zero=True)
        self.anneal = checked_share("anneal", self.anneal, zero=True)

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
            return all_ids(size), constant(np.float32(1), size)
        order, before, end = scores.order(epoch, learnt), 0, 0
        ids = ids_for(size - learnt + kept, size)
        weights = np.empty(len(ids), dtype=np.float32)
        for part in stretches(size):
            easy = is_learnt(part)
            rows = np.flatnonzero(easy)
            is_chosen = ~easy
            is_chosen[rows] = order.forward(np.arange(before, before + len(rows))) < kept
            before += len(rows)
            chosen = np.flatnonzero(is_chosen)
            here = slice(end, end + len(chosen))
            np.add(chosen, part.start, out=ids[here], casting="same_kind")
            weights[here] = np.where(easy[chosen], np.float32(learnt / kept), np.float32(1))
            end += len(chosen)
        return ids, weights
