"""A batch on its way through the workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import BatchOrder
from rekindle.run.bad_samples import BadSample
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
    bad: list[BadSample] = field(default_factory=list)
    ended: bool = False

    @property
    def worker(self) -> int:
        return self.parts[0].worker

    def unit(self, number: int, seed: int) -> Unit:
        """The message that has a part of this batch made."""
        part = self.parts[number]
        rows = slice(part.start, part.stop)
        indices, ids = self.indices[rows], self.ids[rows].tolist()
        turns = self.order.generations[rows]
        one_turn = len(turns) > 0 and (turns.strides == (0,) or len(turns) == 1)
        return Unit(
            ticket=self.number,
            part=number,
            kind=self.kind,
            seed=seed,
            epoch=self.order.epoch,
            step=self.order.step,
            start=part.start,
            indices=indices,
            ids=None if ids == indices else ids,
            generations=int(turns[0]) if one_turn else turns.tolist(),
            slot=None if self.slot is None else self.slot.number,
            careful=part.deaths > 0,
        )

    def keep_strings(self, part: Part, columns: list[list[Any]]) -> None:
        """Note the strings of the rows that did not fail."""
        good = [row for row in range(part.start, part.stop) if row not in self.errors]
        self.strings.update(zip(good, zip(*columns, strict=True), strict=True))


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


@dataclass(frozen=True, slots=True)
class Made:
    """A batch that is ready and needs no unpacking; `ids` has an entry for every row ordered."""

    order: BatchOrder
    ids: NDArray[np.int64]
    value: Any
    bad: list[int] = field(default_factory=list)
    worker: int = 0
