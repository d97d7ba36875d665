"""What became of the near-duplicates in a loader's epochs."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.batch_orders import BatchOrder
from rekindle.choose.duplicates.substitution import reads_saved
from rekindle.choose.plan import EpochPlan
from rekindle.choose.refresh_schedule import Refresh
from rekindle.choose.scores import Scores


class DuplicateStats:
    """Counts how often each sample was yielded, how often one was substituted, and the reads that saved."""

    def __init__(self, size: int) -> None:
        self._yielded = np.zeros(size, dtype=np.int64)
        self.substituted = self.reads_saved = 0
        self._plan: EpochPlan | None = None  # whose reads are computed already
        self._saved: NDArray[np.int8] | None = None

    def record(
        self,
        order: BatchOrder,
        ids: NDArray[np.int64],
        plain: Refresh | None,
        scores: Scores | None,
    ) -> None:
        """Count a yielded batch; without substitution, `plain` or `scores` say what would be recomputed."""
        np.add.at(self._yielded, ids, 1)
        plan, substituted_ids = order.plan, order.substituted_ids
        if plan is None or substituted_ids is None or plain is None:
            return
        if plan is not self._plan or self._saved is None:
            rows = plan.all_rows()
            ids = rows.ids if rows.substituted_ids is None else rows.substituted_ids
            if scores is None:
                due = plain.generations(ids, plan.epoch) == plan.epoch
            else:
                due = scores.made[ids] == scores.uses[ids] - 1
            self._plan, self._saved = plan, reads_saved(rows, due)
        start = order.step * plan.batch_size
        self.substituted += int((substituted_ids != order.ids).sum())
        self.reads_saved += int(self._saved[start : start + len(order.ids)].sum())

    def inclusion(self, duplicates: NDArray[np.bool_]) -> dict[str, int]:
        """How many of the samples with near-duplicates were yielded how often."""
        counts = Counter(self._yielded[duplicates].tolist())
        return {str(times): count for times, count in sorted(counts.items())}
