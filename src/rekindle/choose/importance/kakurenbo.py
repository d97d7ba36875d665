"""KAKURENBO: hide the easiest samples for a while, unless the model is wrong or unsure about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import (
    any_known,
    checked_integer,
    checked_probability,
    checked_share,
    require_logits,
)
from rekindle.choose.importance.systematic_sampling import are_lowest, share_of
from rekindle.choose.sample_ids import all_ids, ids_where
from rekindle.choose.scores import Scores, stretches

_REDUCTION = ((0.0, 1.0), (0.3, 0.8), (0.6, 0.6), (0.8, 0.4))


@dataclass
class Kakurenbo(ImportanceMethod):
    """Hides the samples of the lowest loss, but not those that were wrong or of little confidence.

    Nguyen et al.: "KAKURENBO: Adaptively Hiding Samples in Deep Neural Network Training", NeurIPS'23. The
    share that is hidden shrinks to 0.8, 0.6 and 0.4 of `hide` after 0.3, 0.6 and 0.8 of the epochs. The paper
    refreshes the losses of hidden samples by passing them through the model at the end of each epoch; here a
    sample is shown again when it has been hidden for `longest` epochs, so no extra pass is needed.
    (For the paper's way, pass them through the model and report them with `loader.feedback(ids=…)`: a sample
    with a new score counts as seen.) The paper also raises the learning rate by 1 / (1 − hidden share); that
    is left to the scheduler.

    Args:
        epochs: How many epochs the training has.
        hide: The share that is hidden at most.
        confidence: How probable the right class has to be for a sample to be hidden (the paper's τ).
        longest: For how many epochs a sample is hidden at most.

    Weakness: the bias is not corrected; needs logits; early on few samples are confident, so few are hidden.

    """

    reads = frozenset({"probability", "correct"})
    epochs: int
    hide: float = 0.3
    confidence: float = 0.7
    longest: int = 3

    def __post_init__(self) -> None:
        self.epochs = checked_integer("epochs", self.epochs, 1)
        self.hide = checked_share("hide", self.hide, zero=True)
        self.confidence = checked_probability("confidence", self.confidence)
        self.longest = checked_integer("longest", self.longest, 1)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples but the hidden ones."""
        if epoch == 0 or not any_known(scores.epoch):
            return all_ids(len(scores)), None
        require_logits(self, scores.correct, "to know which samples were right")
        reduction = [factor for start, factor in _REDUCTION if epoch >= start * self.epochs][-1]
        most = share_of(len(scores), self.hide * reduction)
        shown = ~are_lowest(
            lambda part: self._recent_losses(scores, epoch, part),
            len(scores),
            most,
            lambda ids: scores.uniforms(epoch, ids=ids),
        )
        for part in stretches(len(scores)):
            is_sure = (scores.correct[part] == 1) & (scores.probability[part] >= self.confidence)
            shown[part] |= ~is_sure | np.isinf(self._recent_losses(scores, epoch, part))
        return ids_where(shown), None

    def _recent_losses(self, scores: Scores, epoch: int, part: slice) -> NDArray[np.float32]:
        """The losses of some samples; infinite where none is known, or where it is too old."""
        measured = scores.epoch[part]
        is_recent = (measured >= 0) & (measured >= epoch - self.longest)
        return np.where(is_recent, scores.loss[part], np.float32(np.inf))
