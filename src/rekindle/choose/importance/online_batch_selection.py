"""Online batch selection: draw by the rank of the last loss, with a pressure that falls over the epochs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import checked_integer, checked_number, checked_share
from rekindle.choose.importance.percentiles import LevelCounts
from rekindle.choose.importance.systematic_sampling import SystematicDraw, share_of
from rekindle.choose.sample_ids import repeated
from rekindle.choose.scores import Scores, stretches


@dataclass
class OnlineBatchSelection(ImportanceMethod):
    """Draws samples with a probability that falls exponentially with the rank of their last loss.

    Loshchilov, Hutter: "Online Batch Selection for Faster Training of Neural Networks", 2015. Of N samples,
    the i-th hardest is drawn in proportion to exp(−i · ln(s) / N): the first is s times as likely as the
    last. s goes from `pressure` to `final_pressure` in even ratios over the epochs. The paper re-ranks within
    an epoch; here the losses of the last one count for all of the next, and samples whose losses agree in the
    first twelve significant bits have the mean chance of their ranks.

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
        self.epochs = checked_integer("epochs", self.epochs, 1)
        self.keep = checked_share("keep", self.keep, above_one=True)
        self.pressure = checked_number("pressure", self.pressure, 1)
        self.final_pressure = checked_number("final_pressure", self.final_pressure, 1)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """Samples drawn by rank, some of them several times."""
        size = len(scores)
        count = max(1, share_of(size, self.keep))
        levels = LevelCounts.of(scores.last_losses, size)
        done = min(1.0, epoch / max(1, self.epochs - 1))
        pressure = self.pressure ** (1 - done) * self.final_pressure**done
        chances = _mean_chances(levels.counts, float(np.log(pressure)) / size)
        add_expected = levels.adder(chances * (count / float(chances @ levels.counts)))
        drawing = SystematicDraw.of(scores, epoch, float(count))
        ids, weights = [], []
        for part in stretches(size):
            own = np.zeros(part.stop - part.start)
            add_expected(scores.last_losses(part), own)
            ids.append(repeated(drawing.next(own), part.start, size))
            if self.correct:
                weights.append((1 / own[ids[-1] - part.start]).astype(np.float32))
        return np.concatenate(ids), np.concatenate(weights) if self.correct else None


def _mean_chances(counts: NDArray[np.int64], decline: float) -> NDArray[np.float64]:
    """The mean of exp(−rank · decline) over the ranks of each level's samples, the hardest first."""
    harder = counts.sum() - np.cumsum(counts)
    if decline == 0:
        return np.ones(len(counts))
    means: NDArray[np.float64] = np.exp(-harder * decline) * np.expm1(-counts * decline)
    means /= counts * np.expm1(-decline)
    return means
