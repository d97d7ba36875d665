"""A random subset in each epoch: the baseline that every other method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import checked_share
from rekindle.choose.importance.systematic_sampling import share_of
from rekindle.choose.sample_ids import ids_where
from rekindle.choose.scores import Scores, stretches


@dataclass
class RandomSubset(ImportanceMethod):
    """RS2: another random subset of the samples in every epoch.

    Okanovic et al.: "Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning", ICLR'24.

    Args:
        keep: The share of the samples that an epoch has.
        cycle: Whether all samples are used before one is used again (the paper's variant without
            replacement): ⌈1/keep⌉ epochs cover them all, the last one filled up with samples of the first.
            Without, every epoch draws from all samples.

    Weakness: it uses no feedback, so all it gains is the smaller budget.

    """

    reads = frozenset()
    keep: float = 0.5
    cycle: bool = True
    needs_feedback = False

    def __post_init__(self) -> None:
        self.keep = checked_share("keep", self.keep)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The subset of this epoch."""
        size = len(scores)
        count = max(1, share_of(size, self.keep))
        epochs = -(-size // count) if self.cycle else 1
        order, start = scores.order(epoch // epochs, size), epoch % epochs * count
        is_chosen = np.empty(size, dtype=bool)
        for part in stretches(size):
            places = order.inverse(np.arange(part.start, part.stop)) - start
            places += size * (places < 0)  # Behind the last come the first.
            np.less(places, count, out=is_chosen[part])
        return ids_where(is_chosen), None
