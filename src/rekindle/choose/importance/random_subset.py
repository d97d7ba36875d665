"""A random subset in each epoch: the baseline that every cleverer method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.draws import share_of
from rekindle.choose.importance.method import Planned, check_share
from rekindle.choose.scores import Scores


@dataclass
class RandomSubset:
    """RS2: another random subset of the samples in every epoch.

    Okanovic et al.: "Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning", ICLR'24.

    Args:
        keep: The share of the samples that an epoch has.
        cycle: Whether all samples are used before one is used again (the paper's variant without
            replacement): ⌈1/keep⌉ epochs go through them all, the last one filled up with samples of the
            first. Without, every epoch draws from all samples.

    Weakness: it knows nothing, so it gains nothing but the smaller budget; what it loses, it loses evenly.

    """

    keep: float = 0.5
    cycle: bool = True
    needs_feedback = False

    def __post_init__(self) -> None:
        check_share("keep", self.keep)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The subset of this epoch."""
        size = len(scores)
        count = max(1, share_of(size, self.keep))
        if not self.cycle:
            return np.sort(scores.permutation(epoch)[:count]), None
        epochs = -(-size // count)
        order = scores.permutation(epoch // epochs)
        part = np.arange(count) + epoch % epochs * count
        return np.sort(order[part % size]), None
