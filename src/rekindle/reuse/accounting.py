"""What came of reuse: which batches were yielded, which cached parts are of no more use, what was saved."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from rekindle.choose.batch_orders import YieldedBatch
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.shard import Shard
from rekindle.core.samples import Batch
from rekindle.reuse.cache.store import Store
from rekindle.reuse.planning import ReusePlanning
from rekindle.reuse.report import ReuseReport
from rekindle.reuse.settings import Echo, Refurbish
from rekindle.reuse.split_point import SplitPoint
from rekindle.reuse.view_counter import ViewCounter


class ReuseAccounting:
    """Keeps account of the batches that a loader yields."""

    def __init__(
        self,
        dataset: Any,
        reuse: Refurbish | Echo | None,
        planning: ReusePlanning,
        redundant: DuplicatePolicy | None,
        seed: int,
    ) -> None:
        self._dataset, self._reuse, self._seed = dataset, reuse, seed
        self._planning, self._redundant = planning, redundant
        self.store: Store | None = None  # the cache, as long as it is open
        self.was_empty = False  # the cache that a resumed run began with
        self._views: ViewCounter | None = None
        self._samples = self._planned = self._recomputed = 0
        self._epoch = -1  # of the last batch

    @property
    def _is_shared_by_runs(self) -> bool:
        """Whether other runs, which may be in other epochs, read the same cache."""
        return isinstance(self._reuse, Refurbish) and self._reuse.shared is not None

    def note(self, yielded: YieldedBatch, batch: Batch, importance: ImportanceSession | None) -> None:
        """Count a batch, which `importance` may have chosen; let go of what was used for the last time."""
        order, redundant, store = yielded.order, self._redundant, self.store
        scores = None if importance is None else importance.scores
        if redundant is not None:
            redundant.stats.record(order, yielded.ids, self._planning.plain_refresh(), scores)
        if self._reuse is None:
            return
        if self._views is None:
            size = 0 if isinstance(self._dataset, IterableDataset) else len(self._dataset)
            self._views = ViewCounter(size, self._seed)
        self._samples += len(yielded.ids)
        self._planned += int(np.count_nonzero(yielded.planned))
        self._recomputed += int(np.count_nonzero(yielded.recomputed))
        self._views.count(yielded.ids, batch)
        if store is not None and order.epoch != self._epoch:
            self._epoch = order.epoch
            store.note_epoch(order.epoch)
            if importance is not None and order.plan is not None:
                self._drop_moved(store, importance, order.plan.shard)
            elif redundant is not None and order.plan is not None and not self._is_shared_by_runs:
                store.drop(self._planning.released(order.plan), before=order.epoch)
        if store is None or order.plan is None:
            return
        if order.last_uses is not None:
            store.drop(order.ids[order.last_uses], before=order.epoch + 1)
        if redundant is not None:
            store.drop(redundant.superseded(order), before=order.epoch)
        elif scores is None and order.plan.shard.world > 1 and not self._is_shared_by_runs:
            # The next epoch may have a rank of another host recompute it: nobody would overwrite this one.
            store.drop(self._planning.used_up(order.plan, order.ids), before=order.epoch + 1)

    def _drop_moved(self, store: Store, importance: ImportanceSession, shard: Shard) -> None:
        """Let go of what other ranks recompute: nobody would overwrite it here."""
        dealt = None if importance.choice is None else importance.choice.dealt
        if dealt is not None and dealt.world == shard.world and not self._is_shared_by_runs:
            gone = dealt.gone_from(shard.rank)
            store.drop(gone, before=importance.generations_now(gone))

    def report(self, split: SplitPoint, epochs: int) -> ReuseReport | None:
        """What was saved in so many epochs, and what it cost in diversity; None before the first batch."""
        views, store = self._views, self.store
        if views is None:
            return None
        stats = None if store is None else store.stats
        saved = stats.hits * stats.seconds / stats.misses if stats is not None and stats.misses else 0.0
        return ReuseReport(
            cure=repr(self._reuse),
            split=split.described(),
            planned_share=self._planned / max(self._samples, 1),
            fresh_share=self._recomputed / max(self._samples, 1),
            held_share=None
            if store is None or stats is None
            else min(1.0, stats.entries / max(store.size, 1)),
            fits=1.0 if store is None else store.share_admitted,
            seconds_saved=saved,
            store=stats,
            expected=split.expected(epochs),
            counted=views.counted(),
            was_empty=self.was_empty,
        )
