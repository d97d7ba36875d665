"""Online batch selection: draw by the rank of the last loss, with a pressure that falls over the epochs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_at_least, check_integer, check_share
from rekindle.choose.importance.systematic_sampling import share_of, systematic
from rekindle.choose.scores import Scores


@dataclass
class OnlineBatchSelection(ImportanceMethod):
    """Draws samples with a probability that falls exponentially with the rank of their last loss.

    Loshchilov, Hutter: "Online Batch Selection for Faster Training of Neural Networks", 2015. Of N samples,
    the i-th hardest is drawn in proportion to exp(−i · ln(s) / N): the first is s times as likely as the
    last. s goes from `pressure` to `final_pressure` in even ratios over the epochs. The paper re-ranks within
    an epoch; here the losses of the last one count for all of the next.

    Args:
        epochs: How many epochs the training has.
        pressure: s in the first epoch.
        final_pressure: s in the last epoch.
        keep: How many samples an epoch has, as a share of all: 1 draws as many as there are; hard ones
            several times, easy ones not at all.
        correct: Whether to give samples the weight 1 / (how often each is drawn on average).

    Weakness: like all methods that prefer high losses, it favours wrong labels; with keep=1 it saves no time.

    """

    reads = frozenset()
    epochs: int
    pressure: float = 100.0
    final_pressure: float = 1.0
    keep: float = 1.0
    correct: bool = False

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs, 1)
        check_share("keep", self.keep, above_one=True)
        check_at_least("pressure", self.pressure, 1)
        check_at_least("final_pressure", self.final_pressure, 1)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """Samples drawn by rank, some of them several times."""
        size = len(scores)
        count = max(1, share_of(size, self.keep))
        rank = np.zeros(size)
        if scores.known.any():
            hardest_first = -np.where(scores.known, scores.loss, np.inf)
            rank[np.lexsort((scores.uniforms(epoch), hardest_first))] = np.arange(size)
        done = min(1.0, epoch / max(1, self.epochs - 1))
        pressure = self.pressure ** (1 - done) * self.final_pressure**done
        chances = np.exp(-rank * np.log(pressure) / size)
        expected = chances * (count / chances.sum())
        offset = float(scores.uniforms(epoch, draw=2)[0])
        counts = systematic(expected, scores.permutation(epoch, draw=1), offset)
        ids = np.repeat(np.arange(size), counts)
        return ids, 1 / expected[ids] if self.correct else None
