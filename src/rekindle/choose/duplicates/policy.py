"""Near-duplicates in one loader: the settings applied to its dataset."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.batch_orders import BatchOrder
from rekindle.choose.duplicates.duplicate_stats import DuplicateStats
from rekindle.choose.duplicates.epoch_samples import EpochSamples
from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.duplicates.representatives import GroupIndex
from rekindle.choose.duplicates.settings import Redundancy
from rekindle.choose.duplicates.substitution import SubstitutingRefresh, superseded
from rekindle.choose.refresh_schedule import Refresh


class DuplicatePolicy:
    """What a loader does with the near-duplicates of a dataset of `size` samples.

    `epochs` decides which samples an epoch has, `stats` counts what came of it.
    """

    def __init__(self, settings: Redundancy, size: int, seed: int) -> None:
        self._settings, self._groups = settings, settings.groups_of(size)
        self._index = GroupIndex.of(self._groups.numbers())
        self._removes = settings.mode == "remove"
        self.identity = settings.identity(size)  # what a checkpoint must agree with
        self.stats = DuplicateStats(size)
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Let the members of groups take turns as this seed says."""
        turns = GroupTurns.of(self._index, seed)
        self.epochs = EpochSamples(turns, seed, remove=self._removes, keep_totals=self._settings.correct)

    def refresh(self, plain: Refresh) -> Refresh:
        """The schedule by which cached results are recomputed, in place of the plain one."""
        if self._removes:
            return plain
        return SubstitutingRefresh.over(self.epochs.turns, plain.factor, plain.seed)

    @property
    def substitutes(self) -> bool:
        """Whether near-duplicates share a cached result."""
        return not self._removes

    def superseded(self, order: BatchOrder) -> NDArray[np.int64]:
        """The samples whose cached results are not used again after this batch; they may be dropped."""
        if self._removes:
            return np.empty(0, dtype=np.int64)
        return superseded(order, self.epochs.turns)

    def summary(self) -> dict[str, object]:
        """The report's entry; `inclusion`: how many samples with near-duplicates came how often."""
        summary: dict[str, object] = {
            "mode": self._settings.mode,
            "groups": len(self._groups),
            "samples in groups": self._groups.samples,
        }
        if not self._removes:
            summary |= {"substituted": self.stats.substituted, "reads saved": self.stats.reads_saved}
        return {**summary, "inclusion": self.stats.inclusion(self._index.sizes > 1)}
