"""All samples, every epoch: what every method is compared to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rekindle.choose.importance.method import Planned
from rekindle.choose.scores import Scores


@dataclass
class Uniform:
    """Every sample once an epoch, at the weight 1; feedback is kept, and not needed.

    Weakness: it spends as much on what the model knows as on what it does not.
    """

    needs_feedback = False

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples."""
        return np.arange(len(scores)), None
