"""All samples in every epoch: what every method is compared to."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.sample_ids import all_ids
from rekindle.choose.scores import Scores


@dataclass
class Uniform(ImportanceMethod):
    """Every sample once per epoch, with weight 1; feedback is recorded, but not needed.

    Weakness: it spends as much on samples that the model knows as on those that it does not.
    """

    reads = frozenset()
    needs_feedback = False

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples."""
        return all_ids(len(scores)), None
