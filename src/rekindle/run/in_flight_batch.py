"""A batch on its way through the workers, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import BatchOrder
from rekindle.choose.position import DatasetState
from rekindle.core.samples import Batch, Index
from rekindle.run.bad_samples import BadSample, BatchFailures, bad_rows
from rekindle.run.batch_layout import Layout
from rekindle.run.messages import Done, Kind, SampleError
from rekindle.run.slots import Slot


@dataclass(slots=True)
class Part:
    """Some rows of a batch, assigned to one worker; `sent` numbers the parts in the order of sending."""

    start: int
    stop: int
    worker: int
    sent: int = -1
    done: bool = False
    deaths: int = 0


@dataclass(slots=True, eq=False)
class InFlightBatch:
    """A batch in flight: what was ordered, which worker loads which part, what has come back."""

    number: int
    order: BatchOrder
    kind: Kind
    parts: list[Part]
    indices: list[Index]
    ids: NDArray[np.int64]
    pending: int  # parts
    generations: int | list[int]
    turns: int | list[int]
    slot: Slot | None = None
    layout: Layout | None = None
    results: list[tuple[Part, Done]] = field(default_factory=list)  # what has come back, part by part
    errors: dict[int, SampleError] = field(default_factory=dict)
    failures: BatchFailures = field(default_factory=BatchFailures)
    missing: int = 0  # rows at the end that a stream had no samples for
    fresh_before: list[bool] | None = None  # of the same order, when it was sent before
    dataset_state: DatasetState | None = None  # of the worker's copy of the dataset behind this batch
    is_loose: bool = False  # whether samples of it were handed over as they are
    loose_slots: dict[int, Slot] = field(default_factory=dict)  # by part: samples that fitted no rows

    def bad_samples(self) -> list[BadSample]:
        """All that failed on the way, in the same order on every run."""
        return [*self.failures.found, *self._bad_rows().values()]

    def _bad_rows(self) -> dict[int, BadSample]:
        reasons = {row: error.exception.reason for row, error in self.errors.items()}
        return bad_rows(self.order, self.ids, reasons)

    def substitute_bad(self, seed: int) -> list[int]:
        """Choose a substitute for each sample that failed; returns the rows to load again."""
        substitutes = self.failures.substitutes(seed, self.order, self._bad_rows())
        self.indices, self.ids = list(self.indices), self.ids.copy()
        turns = self.turns if isinstance(self.turns, list) else [self.turns] * len(self.indices)
        for row, index, id_, turn in substitutes:
            self.indices[row], self.ids[row], turns[row] = index, id_, turn
        self.turns = turns
        self.errors.clear()
        return [one.row for one in substitutes]

    def filled(self, memory: NDArray[np.uint8]) -> SlotBatch:
        """The batch, ready to be yielded."""
        return SlotBatch(
            order=self._order_now(),
            ids=self.ids,
            worker=self.parts[0].worker,
            memory=memory,
            layout=self.layout,
            strings=self._strings(),
            sizes=self.results[-1][1].sizes or [],
            bad=self._left_out(),
            fresh=self.fresh(),
            dataset_state=self.dataset_state,
        )

    def collated(self, value: Batch) -> CollatedBatch:
        """The same, collated here."""
        order, worker, fresh = self._order_now(), self.parts[0].worker, self.fresh()
        return CollatedBatch(order, self.ids, value, self._left_out(), worker, by_workers=True, fresh=fresh)

    def _order_now(self) -> BatchOrder:
        """The order, with the turns of substitutes."""
        return self.order._replace(turns=np.array(self.turns)) if self.failures.tried else self.order

    def _left_out(self) -> list[int]:
        return sorted(self.errors) + list(range(len(self.indices) - self.missing, len(self.indices)))

    def fresh(self) -> list[bool] | None:
        """Which samples were not reused, of those that are back; None if workers do not report it."""
        fresh = None if self.fresh_before is None else [*self.fresh_before]
        for part, done in self.results:
            if done.fresh is None:
                continue
            if self.kind == "stream":
                return done.fresh  # of all that it had
            fresh = [False] * len(self.indices) if fresh is None else fresh
            for row, is_fresh in enumerate(done.fresh, part.start):
                fresh[row] |= is_fresh  # It may have been computed for a part that had to be sent again.
        return fresh

    def _strings(self) -> list[tuple[str | bytes, ...]]:
        """The strings of the rows that did not fail, in order."""
        strings: dict[int, tuple[str | bytes, ...]] = {}
        for part, done in self.results:
            if done.objects:
                failed = {error.row for error in done.errors}
                good = [row for row in range(part.start, part.stop) if row not in failed]
                strings.update(zip(good, zip(*done.objects, strict=True), strict=True))
        return [strings[row] for row in sorted(strings)]


@dataclass(frozen=True, slots=True)
class SlotBatch:
    """A batch that is ready: where it lies and how to read it.

    With a `layout`, `memory` holds rows, those in `bad` without meaning, and `strings` what is not a number;
    without one it is a packed value of the given `sizes`.
    """

    order: BatchOrder
    ids: NDArray[np.int64]
    worker: int
    memory: NDArray[np.uint8]
    layout: Layout | None
    strings: list[tuple[str | bytes, ...]]
    sizes: list[int]
    bad: list[int]
    fresh: list[bool] | None = None
    dataset_state: DatasetState | None = None


class CollatedBatch(NamedTuple):
    """A batch that is ready and needs no unpacking; `ids` has an entry for every row ordered.

    `at_once` says that nobody timed the parts of its making, `by_workers` that they have counted its bytes.
    """

    order: BatchOrder
    ids: NDArray[np.int64]
    value: Batch
    bad: Sequence[int] = ()
    worker: int = 0
    at_once: bool = False
    by_workers: bool = False
    nbytes: int | None = None  # of its tensors, where its maker knows without looking
    fresh: list[bool] | None = None  # which samples are not reused; None: as ordered
    dataset_state: DatasetState | None = None  # of the dataset behind this batch
