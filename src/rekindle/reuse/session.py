"""Reuse in one loader: the dataset in two parts, and the cache in between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset

from rekindle.choose import Redundancy
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.core.analysis.code_reads import CodeReads, code_reads
from rekindle.core.analysis.look import Look
from rekindle.core.analysis.look_at_reads import LookAtReads, functions_are_equal
from rekindle.core.analysis.shared_values import SharedValues
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.prepare.native import as_native, device_steps, follow_changes
from rekindle.reuse import Echo, Refurbish, Store, WorkerView
from rekindle.reuse.accounting import ReuseAccounting
from rekindle.reuse.cache.memory_budget import Memory
from rekindle.reuse.cache_opener import CacheOpener
from rekindle.reuse.echo_stream import EchoStream
from rekindle.reuse.finished_stream import FinishedStream
from rekindle.reuse.planning import ReusePlanning
from rekindle.reuse.report import ReuseReport
from rekindle.reuse.split_point import SplitPoint

_LOOK_SECONDS = 0.02  # to find out whether what the dataset holds was changed
_log = logging.getLogger("rekindle")


class ReuseSession:
    """What a loader's workers read: the dataset split in two, with a cache between, or as it is.

    Made with the loader, decided with its first epoch. A `CacheOpener` opens the cache; `planning` and
    `accounting` do the rest. `is_native` says whether the dataset is one of ours, or was translated to one.
    """

    def __init__(
        self,
        dataset: Any,
        reuse: Refurbish | Echo | None,
        final_transform: Callable[[Sample], Sample] | None,
        memory: Memory | None,
        seed: int,
        redundancy: Redundancy | None = None,
    ) -> None:
        if reuse is not None and memory is not None:
            reuse = replace(reuse, memory=memory)
        self._given, self._reuse, self._seed = dataset, reuse, seed
        self._final_transform = final_transform
        self.redundant = None if redundancy is None else DuplicatePolicy(redundancy, len(dataset), seed)
        # How whole batches are repeated; None if they are not.
        self.batch_echo = reuse if isinstance(reuse, Echo) and reuse.after == "batch" else None
        # Whether workers load samples in two parts.
        self.splits_samples = final_transform is not None or (reuse is not None and self.batch_echo is None)
        # Whether there is anything to count in the batches that are yielded.
        self.keeps_account = not (reuse is None and redundancy is None)
        self._split = SplitPoint(dataset, reuse, final_transform)
        self.dataset = self._split.dataset
        self.is_native = as_native(dataset) is not None
        self.planning = ReusePlanning(self.dataset, reuse, seed, self.redundant)
        self.accounting = ReuseAccounting(self.dataset, reuse, self.planning, self.redundant, seed)
        self._opener = CacheOpener(dataset, self._split, self.planning.costs_of)
        self.worker_view: WorkerView | None = None
        self._on_device = device_steps(dataset)
        self._reads = CodeReads()  # what the code of the part that is cached reads
        self._looked_like: tuple[Look, LookAtReads | None] | None = None
        self._shared_values = SharedValues()
        self._order_seed: int | None = None  # of the order, if it is not the seed of the views
        self._resumes = False  # since a checkpoint was loaded, no cache was opened

    def order_by(self, seed: int | None) -> None:
        """Order samples by a seed of its own, that of a sampler; None: by that of the views."""
        self.planning.follow(self._seed if seed is None else seed)
        self._order_seed = seed

    def prepare(self) -> None:
        """Split the dataset and make the cache, if that is to be done; again if the dataset was changed."""
        follow_changes(self._given, self.dataset)
        if device_steps(self._given) is not self._on_device:
            raise ArgumentError(
                f"the transform of {self._given!r} was changed, whose last steps run on the device. Make "
                "another DataLoader for it."
            )
        nothing_to_do = self._reuse is None and self._final_transform is None
        if nothing_to_do or isinstance(self.dataset, IterableDataset):
            return
        held = None if self._looked_like is None else self._look_at_held()
        is_another = held is not None and self._is_another(held)
        if self.worker_view is None or is_another:
            self.close()
            if is_another:
                name = type(self._given).__name__
                _log.info("%s, or what it reads, was changed since the last epoch: a new cache begins", name)
                self._split.look()
                self._opener.note_change()
            self._use(self._split_and_cache())
            self._look()
            if self._resumes and self.accounting.store is not None:
                self._resumes, self.accounting.was_empty = False, not self.accounting.store.stats.entries
        elif (
            held is not None and not held.is_complete
        ):  # The first part may be a copy of a dataset that was changed since.
            self.worker_view = replace(self.worker_view, split=self._split.split())

    def sees_others_values(self) -> bool:
        """Whether the cache is of another value in shared memory, which even persistent workers see."""
        return self._shared_values.were_changed()

    def _look_at_held(self) -> Look:
        held = self.dataset, self._final_transform
        return Look(*held, budget=_LOOK_SECONDS, code=False, partly=True, reads=self._reads)

    def _look(self) -> None:
        """Look at what the parts depend on that are cached from now on."""
        view = self.worker_view
        self._reads = CodeReads() if view is None or view.store is None else code_reads(*view.split.code)
        held, reads = self._look_at_held(), None
        if self._reads.functions or self._reads.classes:
            reads = LookAtReads(self._reads, held)
        self._looked_like = held, reads
        has_cache = view is not None and view.store is not None
        looks = (held,) if reads is None else (held, reads)
        self._shared_values = SharedValues(*(looks if has_cache else ()), written=self._reads.written)

    def _is_another(self, held: Look) -> bool:
        """Whether anything was changed since that was looked at, as far as can be seen."""
        assert self._looked_like is not None
        held_before, before = self._looked_like
        if not held.finds_same(held_before) or self.sees_others_values():
            return True
        if not functions_are_equal(self._reads, held, held_before):
            return True
        if before is None or before.still_holds():
            return False
        return not LookAtReads(self._reads, held).finds_same(before)

    def _use(self, view: WorkerView | None) -> None:
        self.worker_view, self.accounting.store = view, None if view is None else view.store

    def _split_and_cache(self) -> WorkerView | None:
        reuse, split = self._reuse, self._split
        if reuse is None or self.batch_echo is not None:
            return None if self._final_transform is None else WorkerView(split.split(), None)
        if isinstance(reuse, Echo):
            return WorkerView(split.checked_split(), Store(len(self.dataset), memory=reuse.memory))
        halves, store = self._opener.open(reuse, self._seed)
        part_seed = None if reuse.shared is None else reuse.part_seed(self._seed)
        return WorkerView(halves, store, part_seed)

    def iterable_view(self) -> Any:
        """An iterable dataset as workers read it."""
        reuse = self._reuse
        if isinstance(reuse, Echo) and reuse.after != "batch":
            afresh = reuse.after != "augment"
            return EchoStream(self.dataset, reuse.factor, reuse.buffer, self._final_transform, afresh)
        if self._final_transform is not None:
            return FinishedStream(self.dataset, self._final_transform)
        return self.dataset

    @property
    def watched(self) -> tuple[object, ...]:
        """What workers get copies of beside the dataset that was given."""
        split = None if self.worker_view is None else self.worker_view.split
        return self.dataset, self._final_transform, split

    def report(self, epochs: int) -> ReuseReport | None:
        """What was saved in so many epochs, and what it cost; None if nothing is reused, or before it is."""
        if self._reuse is None:
            return None
        return self.accounting.report(self._split, epochs)

    def identity(self) -> dict[str, int | str | None]:
        """What a checkpoint must agree with."""
        reuse, shown = self._reuse, "none"
        if isinstance(reuse, Echo):
            shown = f"Echo(factor={reuse.factor}, after={reuse.after!r}, shuffle={reuse.buffer})"
        elif reuse is not None:
            shared = "" if reuse.shared is None else f", shared={reuse.shared!r}"
            shown = f"Refurbish(factor={reuse.factor}, balance={reuse.balance!r}{shared})"
        duplicates = "" if self.redundant is None else self.redundant.identity
        return {"reuse": shown, "split": self._split.index, "redundancy": duplicates}

    @property
    def last_split(self) -> int:
        """The last split point that the dataset has."""
        return self._split.last

    def resume(self, seed: int, split: int | None) -> None:
        """Take over what a checkpoint says."""
        self.close()
        self._resumes, self.accounting.was_empty = True, False
        self._seed, self._split.index = seed, split
        self.planning.follow(seed if self._order_seed is None else self._order_seed)
        if self.redundant is not None:
            self.redundant.reseed(seed)

    def close(self) -> None:
        """Let go of the cache in memory."""
        if self.accounting.store is not None:
            self.accounting.store.close()
        self._use(None)
