"""Selective back-propagation: a sample's chance grows with the percentile of its loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.draws import capped, share_of, systematic
from rekindle.choose.importance.method import Planned, check_share, check_whole
from rekindle.choose.importance.ranks import percentiles
from rekindle.choose.scores import Scores
from rekindle.errors import ArgumentError


@dataclass
class SelectiveBackprop:
    """Keeps a sample with the probability percentile(loss)^β ("biggest losers").

    Jiang et al.: "Accelerating Deep Learning by Focusing on the Biggest Losers", 2019. The paper passes every
    sample forward and decides then; here the decision is taken before loading, on the last loss known, which
    saves the forward pass and the loading as well. The paper estimates percentiles from the last 1,024
    losses; all samples' last losses are known here, so they are exact. Samples without a loss count as the
    hardest.

    Args:
        beta: The power β: 3 keeps about a quarter.
        keep: The share of the samples to keep instead of 1 / (β + 1): chances are scaled to it.
        warmup: For how many epochs all samples are used first.
        correct: Whether to give samples the weight 1 / chance, which removes the bias and adds variance.

    Weakness: it dwells on wrong labels and outliers; a low loss that has risen since is found late.

    """

    beta: float = 3.0
    keep: float | None = None
    warmup: int = 1
    correct: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.beta, int | float) and self.beta >= 0):
            raise ArgumentError(f"beta is a power from 0 on, but got {self.beta!r}")
        if self.keep is not None:
            check_share("keep", self.keep)
        check_whole("warmup", self.warmup, 0)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """Samples drawn by their chances; their number is not left to chance."""
        if epoch < self.warmup:
            return np.arange(len(scores)), None
        loss = np.where(scores.known, scores.loss, np.inf)
        chances = percentiles(loss) ** self.beta
        if self.keep is not None:
            chances = capped(chances, max(1, share_of(len(scores), self.keep)))
        uniforms = scores.uniforms(epoch)
        order = np.argsort(uniforms, kind="stable")
        ids = np.flatnonzero(systematic(chances, order, float(scores.uniforms(epoch, draw=1)[0])))
        if not len(ids):
            ids = np.argmax(loss, keepdims=True)
        return ids, 1 / chances[ids] if self.correct else None
