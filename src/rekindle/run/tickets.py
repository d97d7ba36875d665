"""A batch on its way through the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import BatchOrder
from rekindle.run.bad_samples import BadSample, substitute
from rekindle.run.layout import Layout
from rekindle.run.messages import Kind, SampleError, Unit
from rekindle.run.slots import Slot


@dataclass(slots=True)
class Part:
    """Some rows of a batch, given to one worker; `sent` numbers the parts in the order of their sending."""

    start: int
    stop: int
    worker: int = -1
    sent: int = -1
    done: bool = False
    deaths: int = 0


@dataclass(slots=True)
class Ticket:
    """A batch in the works: what was ordered, who makes which part, what has come back."""

    number: int
    order: BatchOrder
    kind: Kind
    indices: list[Any]
    ids: NDArray[np.int64]
    parts: list[Part]
    pending: int
    slot: Slot | None = None
    layout: Layout | None = None
    strings: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    sizes: list[int] | None = None
    packed: bytes | None = None
    errors: dict[int, SampleError] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    replaced: list[BadSample] = field(default_factory=list)
    ended: bool = False
    missing: int = 0  # rows at the end that a stream had no samples for
    fresh: list[bool] | None = None  # which samples of a stream are no repeats, if it has repeats

    def unit(self, number: int, seed: int, worker_seed: int, timed: bool = False) -> Unit:
        """The message that has a part of this batch made."""
        part = self.parts[number]
        rows = slice(part.start, part.stop)
        indices = self.indices[rows]
        return Unit(
            ticket=self.number,
            part=number,
            kind=self.kind,
            seed=seed,
            worker_seed=worker_seed,
            epoch=self.order.epoch,
            step=self.order.step,
            start=part.start,
            indices=indices,
            ids=None if self.order.plain else self.ids[rows].tolist(),
            generations=_listed(self.order.generations, rows),
            turns=_listed(self.order.turns, rows),
            slot=None if self.slot is None else self.slot.number,
            careful=part.deaths > 0,
            timed=timed,
        )

    def bad_samples(self) -> list[BadSample]:
        """All that failed on the way, in the same order on every run."""
        left = [self._bad_sample(row) for row in sorted(self.errors)]
        return self.replaced + left

    def _bad_sample(self, row: int) -> BadSample:
        return BadSample(self.order.epoch, int(self.ids[row]), self.errors[row].told.reason)

    def replace_bad(self, seed: int) -> None:
        """Put another sample in the place of each that failed, and add the parts that make them."""
        rows = sorted(self.errors)
        self.replaced += [self._bad_sample(row) for row in rows]
        self.indices, self.ids = list(self.indices), self.ids.copy()
        for row in rows:
            attempt = self.attempts.get(row, 0)
            self.attempts[row] = attempt + 1
            stand_in = substitute(seed, self.order, int(self.order.ids[row]), attempt)
            self.indices[row], self.ids[row] = stand_in
        self.errors.clear()
        whole = [Part(0, len(self.indices))]
        new = [Part(row, row + 1) for row in rows] if self.kind == "rows" else whole
        self.parts += new
        self.pending = len(new)

    def filled(self, memory: NDArray[np.uint8]) -> Filled:
        """The batch as it is handed over."""
        return Filled(
            order=self.order,
            ids=self.ids,
            worker=self.parts[0].worker,
            memory=memory,
            layout=self.layout,
            strings=[self.strings[row] for row in sorted(self.strings)],
            sizes=self.sizes or [],
            bad=sorted(self.errors) + list(range(len(self.indices) - self.missing, len(self.indices))),
            fresh=self.fresh,
        )

    def keep_strings(self, part: Part, columns: list[list[Any]]) -> None:
        """Note the strings of the rows that did not fail."""
        good = [row for row in range(part.start, part.stop) if row not in self.errors]
        self.strings.update(zip(good, zip(*columns, strict=True), strict=True))


def _listed(numbers: int | NDArray[np.int64], rows: slice) -> int | list[int]:
    return numbers if isinstance(numbers, int) else numbers[rows].tolist()


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch that is ready: where it lies and how to read it.

    With a `layout`, `memory` holds rows, those in `bad` without meaning, and `strings` what is not a number;
    without one it is a packed value of the given `sizes`.
    """

    order: BatchOrder
    ids: NDArray[np.int64]
    worker: int
    memory: NDArray[np.uint8]
    layout: Layout | None
    strings: list[tuple[Any, ...]]
    sizes: list[int]
    bad: list[int]
    fresh: list[bool] | None = None


class Made(NamedTuple):
    """A batch that is ready and needs no unpacking; `ids` has an entry for every row ordered.

    `at_once` says that nobody timed the parts of its making.
    """

    order: BatchOrder
    ids: NDArray[np.int64]
    value: Any
    bad: Sequence[int] = ()
    worker: int = 0
    at_once: bool = False
    nbytes: int | None = None  # of its tensors, where its maker knows without looking
    fresh: list[bool] | None = None  # which samples of a stream are no repeats; None: as ordered
