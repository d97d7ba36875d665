"""The plan of an epoch: which samples, in which order and batch, at what weight.

A plan is a function of the position in the epoch, and is evaluated some batches at a time: it takes no longer
to make, and no more memory, for a billion samples than for a thousand. Everything after it only executes it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.planned_rows import PlannedRows
from rekindle.choose.shard import EpochLayout, EpochStart, Shard

_FIRST_WINDOW, _LARGEST_WINDOW = 512, 32_768  # rows that are evaluated at once
_KEPT_WINDOWS = 2  # The last batch of one may be asked for again after the first of the next.


def batches_per_epoch(samples: int, batch_size: int, drop_last: bool) -> int:
    """How many batches so many samples make.

    >>> batches_per_epoch(10, 4, drop_last=False), batches_per_epoch(10, 4, drop_last=True)
    (3, 2)
    """
    full, rest = divmod(samples, batch_size)
    return full + (rest > 0 and not drop_last)


class EpochSequence(Protocol):
    """All samples of an epoch in one order, for all ranks together.

    Rank r of the layout that it was made for has every `world`-th row, from row (r − `first_rank`) mod
    `world` on. Behind its end the sequence repeats, with a `period`.
    """

    epoch: int
    length: int
    period: int
    first_rank: int

    def rows(self, first: int, count: int, stride: int) -> PlannedRows:
        """The rows at `first`, `first + stride`, …, all below `length`."""


@dataclass(frozen=True, eq=False)
class EpochPlan:
    """One rank's epoch: its rows of the sequence of all ranks, from where it starts, in batches.

    An incomplete last batch is left out if `drop_last` is set. All ranks have as many rows; where the
    sequence does not have enough for that, some are repeated, each time as another view.
    """

    sequence: EpochSequence
    batch_size: int
    drop_last: bool
    shard: Shard
    start: EpochStart
    even_weights: bool = False  # with a mean of 1 in every batch
    _windows: deque[_Window] = field(default_factory=partial(deque, maxlen=_KEPT_WINDOWS), repr=False)

    @cached_property
    def epoch(self) -> int:
        """Which epoch this is the plan of."""
        return self.sequence.epoch

    @cached_property
    def samples(self) -> int:
        """How many samples this rank has, in all of its batches."""
        share = self.shard.share(max(0, self.sequence.length - self.start.offset))
        return share - share % self.batch_size if self.drop_last else share

    @cached_property
    def steps(self) -> int:
        """How many batches there are."""
        return -(-self.samples // self.batch_size)

    def batch(self, step: int) -> PlannedRows:
        """The rows of batch `step`."""
        for window in reversed(self._windows):
            if window.first <= step < window.last:
                break
        else:
            window = self._evaluate(step)
            self._windows.append(window)
        start = (step - window.first) * self.batch_size
        rows = window.rows.part(slice(start, start + self.batch_size))
        return rows.with_mean_weight_of_one() if self.even_weights else rows

    def all_rows(self) -> PlannedRows:
        """The rows of all batches at once, which takes memory for each."""
        return self._rows(0, self.samples)

    def any_sample(self, drawn: int) -> int:
        """One of the epoch's samples, of all ranks: the one that a drawn number stands for."""
        return int(self.sequence.rows(drawn % self.sequence.length, 1, 1).ids[0])

    def consumed(self, step: int) -> int:
        """How many samples all ranks together have consumed after so many of their batches."""
        return self.start.consumed(step, EpochLayout(self.shard.world, self.batch_size))

    def unrepeated(self, step: int) -> int:
        """How many rows of all ranks in a step are none that make up for what cannot be divided; 0: all."""
        rows = min(self.samples - step * self.batch_size, self.batch_size) * self.shard.world
        left = self.sequence.length - self.consumed(step)
        return left if 0 < left < rows else 0

    def _evaluate(self, step: int) -> _Window:
        before = self._windows[-1] if self._windows else None
        size = _FIRST_WINDOW if before is None else 4 * len(before.rows.ids)
        last = min(step + max(1, min(size, _LARGEST_WINDOW) // self.batch_size), self.steps)
        rows = self._rows(step * self.batch_size, min(last * self.batch_size, self.samples))
        return _Window(step, last, rows)

    def _rows(self, start: int, stop: int) -> PlannedRows:
        """The rank's rows from `start` to `stop`; what is behind the sequence's end is repeated."""
        sequence, shard, world = self.sequence, self.shard, self.shard.world
        own = shard.rank
        if self.start.layout.world == world:  # Every rank has the rows that are made for it.
            own = (own - sequence.first_rank) % world
        first = self.start.offset + start * world + own
        count, inside = stop - start, len(range(first, sequence.length, world))
        if stop == self.samples and shard.repeats_last and self.unrepeated(self.steps - 1):
            singly = self._last_rows()
            inside = count - len(singly)
        elif count <= inside:
            return sequence.rows(first, count, world)
        else:
            singly = first + np.arange(inside, count) * world
        parts = [(slice(0, inside), sequence.rows(first, inside, world))] if inside else []
        behind = singly - sequence.length
        positions = np.where(behind < 0, singly, (sequence.length + behind) % sequence.period)
        for row, position in enumerate(positions.tolist(), inside):
            parts.append((slice(row, row + 1), sequence.rows(position, 1, 1)))
        times = np.zeros(count, dtype=np.int64)
        times[inside:] = np.where(behind < 0, 0, 1 + behind // sequence.period)
        return PlannedRows.joined(parts).repeated(times)

    def _last_rows(self) -> NDArray[np.int64]:
        """The rank's rows of the last step, where what is repeated comes behind all else that ranks gather.

        Few ranks change few rows for it: each keeps what it has but for those.
        """
        world, done = self.shard.world, (self.steps - 1) * self.batch_size
        first = 0 if self.start.layout.world != world else self.sequence.first_rank
        own = (np.arange(world) - first) % world
        rows = self.start.offset + own[:, None] + np.arange(done, self.samples) * world
        gathered = rows.ravel()
        real = self.unrepeated(self.steps - 1)
        early = np.flatnonzero(gathered[:real] >= self.sequence.length)
        late = real + np.flatnonzero(gathered[real:] < self.sequence.length)
        gathered[early], gathered[late] = gathered[late], gathered[early]
        own_rows: NDArray[np.int64] = rows[self.shard.rank]
        return own_rows


@dataclass(frozen=True, slots=True)
class _Window:
    """The rows of the batches from `first` up to `last`."""

    first: int
    last: int
    rows: PlannedRows
