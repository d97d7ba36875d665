"""Selective backprop: a sample's chance to be kept grows with the percentile of its loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import checked_integer, checked_number, checked_share
from rekindle.choose.importance.percentiles import LevelCounts
from rekindle.choose.importance.systematic_sampling import SystematicDraw, capped, share_of
from rekindle.choose.sample_ids import all_ids, ids_where
from rekindle.choose.scores import Scores, stretches


@dataclass
class SelectiveBackprop(ImportanceMethod):
    """Keeps a sample with the probability percentile(loss)^β ("biggest losers").

    Jiang et al.: "Accelerating Deep Learning by Focusing on the Biggest Losers", 2019. The paper passes every
    sample forward and decides then; here the decision is taken before loading, on the last loss known, which
    saves the forward pass and the loading as well. The paper estimates percentiles from the last 1,024
    losses; here they are among all samples' last losses, of which the first twelve significant bits count.
    Samples without a loss count as the hardest.

    Args:
        beta: The power β: 3 keeps about a quarter.
        keep: The share of the samples to keep instead of 1 / (β + 1): chances are scaled to it.
        warmup: For how many epochs all samples are used first.
        correct: Whether to give samples the weight 1 / chance, which removes the bias and adds variance.
        floor: The least chance of a sample with `correct`, before all are scaled to `keep`. percentile^β
            gets as close to 0 as there are samples; its inverse as a weight can reach 10⁹, and would make one
            sample the whole batch. So no weight is above 1 / floor, and a little more is kept (26 % in place
            of 25 %).

    Weakness: it favours wrong labels and outliers; a low loss that has risen since is found late.

    """

    reads = frozenset()
    beta: float = 3.0
    keep: float | None = None
    warmup: int = 1
    correct: bool = False
    floor: float = 0.05

    def __post_init__(self) -> None:
        self.beta = checked_number("beta", self.beta, 0)
        if self.keep is not None:
            self.keep = checked_share("keep", self.keep)
        self.warmup = checked_integer("warmup", self.warmup, 0)
        self.floor = checked_share("floor", self.floor)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """Samples drawn by their chances; how many are drawn is not random."""
        if epoch < self.warmup:
            return all_ids(len(scores)), None
        size, counts = len(scores), LevelCounts.of(scores.last_losses, len(scores))
        chances = counts.percentiles() ** self.beta  # of each level
        if self.correct:
            chances = np.maximum(chances, self.floor)
        if self.keep is not None:
            chances = capped(chances, max(1, share_of(size, self.keep)), counts.counts)
        drawing = SystematicDraw.of(scores, epoch, float(chances @ counts.counts))
        chance_of = counts.look_up(chances)
        is_drawn, weights = np.empty(size, dtype=bool), []
        for part in stretches(size):
            own = chance_of(scores.last_losses(part))
            np.greater(drawing.next(own), 0, out=is_drawn[part])
            if self.correct:
                weights.append((1 / own[is_drawn[part]]).astype(np.float32))
        if not is_drawn.any():
            is_drawn[np.argmax(scores.last_losses(slice(0, size)))] = True
            weights = [(1 / chances[-1:]).astype(np.float32)]
        return ids_where(is_drawn), np.concatenate(weights) if self.correct else None
