"""A random subset in each epoch: the baseline that every other method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_share
from rekindle.choose.importance.systematic_sampling import share_of, smallest
from rekindle.choose.scores import Scores


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
        check_share("keep", self.keep)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The subset of this epoch."""
        size = len(scores)
        count = max(1, share_of(size, self.keep))
        if not self.cycle:
            return np.flatnonzero(smallest(scores.uniforms(epoch), count)), None
        epochs = -(-size // count)
        drawn = scores.uniforms(epoch // epochs)
        start = epoch % epochs * count
        part = smallest(drawn, start + count) & ~smallest(drawn, start)
        if start + count > size:
            part |= smallest(drawn, start + count - size)
        return np.flatnonzero(part), None
