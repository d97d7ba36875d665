"""A unit that several actors load: which rows each is asked for, and how their results become one.

Results come back as arrays. They are copied once, to the rows of the batch's slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.run.batch_layout import Layout
from rekindle.run.messages import Done, NeedSlot, SampleError, Spent, Unit
from rekindle.run.ray.actor import Loaded
from rekindle.run.sample_timing import NOT_LOADED
from rekindle.run.slots import Slot

NOTHING_SPENT = Spent(0, 0.0, 0.0, 0.0, 0)


@dataclass(slots=True, eq=False)
class Request:
    """Some rows of a unit, for one actor to load.

    `home` is the number of the actor that should, because it has their cached parts; with `fixed`, no other
    may. The first result counts: then it is `done`.
    """

    unit: UnitResults
    rows: range | list[int]
    home: int | None = None
    fixed: bool = False
    done: bool = False
    copies: int = 0  # how many actors have it now
    deaths: int = 0  # of actors that were loading it
    losses: int = 0  # of results on their way

    def message(self) -> Unit:
        """What the actor gets: the rows as a unit of their own."""
        unit, rows = self.unit.unit, self.rows
        if len(rows) == len(unit.indices):
            return unit._replace(start=0, slot=None, careful=False)
        return unit._replace(
            start=0,
            slot=None,
            careful=False,
            indices=[unit.indices[row] for row in rows],
            ids=None if unit.ids is None else [unit.ids[row] for row in rows],
            generations=_rows_of(unit.generations, rows),
            turns=_rows_of(unit.turns, rows),
        )

    def nbytes(self, layout: Layout | None) -> int:
        """The bytes of its result, as far as they are known."""
        if self.unit.unit.kind == "rows":
            return 0 if layout is None else Layout(layout.spec, len(self.rows)).nbytes
        return 0 if self.unit.slot is None else self.unit.slot.nbytes

    def shown(self) -> str:
        """The samples, for an error."""
        indices = [self.unit.unit.indices[row] for row in self.rows]
        return f"sample {indices[0]!r}" if len(indices) == 1 else f"one of the samples {indices!r}"


def _rows_of(turns: int | list[int], rows: range | list[int]) -> int | list[int]:
    return turns if isinstance(turns, int) else [turns[row] for row in rows]


class UnitResults:
    """What has come back of a unit. `described` says that the engine was told how samples are built."""

    def __init__(self, unit: Unit, number: int, slot: Slot | None, stop_at_failure: bool) -> None:
        self.unit, self.number, self.slot = unit, number, slot
        self.described = self.cancelled = False
        self.pending = 0  # requests
        self._stop_at_failure = stop_at_failure
        self._loaded: list[tuple[range | list[int], Loaded]] = []

    @property
    def key(self) -> tuple[int, int]:
        return self.unit.batch, self.unit.part

    def add(self, request: Request, loaded: Loaded, layout: Layout | None) -> None:
        """Take a result; its rows are copied now if it is known where to."""
        self.pending -= 1
        if self.unit.kind == "rows" and loaded.memory is not None and self._fits(loaded, layout):
            loaded = self._copied(request.rows, loaded, layout)
        self._loaded.append((request.rows, loaded))

    def _fits(self, loaded: Loaded, layout: Layout | None) -> bool:
        return layout is not None and self.slot is not None and loaded.spec == layout.spec

    def _copied(self, rows: range | list[int], loaded: Loaded, layout: Layout | None) -> Loaded:
        assert self.slot is not None
        assert layout is not None
        assert loaded.memory is not None
        copy_rows(loaded.memory, self.slot.array, layout, rows, self.unit.start)
        return loaded._replace(memory=None)

    def answer(self, layout: Layout | None) -> Done | NeedSlot | None:
        """What the engine is to be told now; None as long as something is missing."""
        if self.pending:
            return None
        if self.unit.kind != "rows":
            return self._batch_answer()
        errors = self._errors()
        if errors and self._stop_at_failure:
            return self._done(errors=errors)
        if any(loaded.done.mismatch for _, loaded in self._loaded):
            return self._done(errors=errors, mismatch=True)
        if not any(loaded.described for _, loaded in self._loaded):  # All samples failed.
            return self._done(errors=errors)
        if layout is None or self.slot is None:
            return None  # The engine was told how samples are built, and answers.
        if any(loaded.described and loaded.spec != layout.spec for _, loaded in self._loaded):
            return self._done(errors=errors, mismatch=True)
        for rows, loaded in self._loaded:
            if loaded.memory is not None:
                self._copied(rows, loaded, layout)
        return self._done(errors=errors, objects=self._strings(errors))

    def _batch_answer(self) -> Done | NeedSlot:
        _, loaded = self._loaded[0]
        done, memory = loaded.done._replace(batch=self.unit.batch, part=self.unit.part), loaded.memory
        if memory is None or done.sizes is None:
            return done._replace(errors=self._errors())
        if self.slot is None or self.slot.nbytes < memory.nbytes:
            return NeedSlot(self.unit.batch, self.unit.part, memory.nbytes)
        self.slot.array[: memory.nbytes] = memory
        return done._replace(errors=self._errors())

    def _errors(self) -> tuple[SampleError, ...]:
        """The errors, by their rows in the batch; of a whole batch, row −1."""
        start = self.unit.start
        return tuple(
            error if error.row < 0 else error._replace(row=start + rows[error.row])
            for rows, loaded in self._loaded
            for error in loaded.done.errors
        )

    def _done(
        self,
        errors: tuple[SampleError, ...],
        objects: list[list[str | bytes]] | None = None,
        mismatch: bool = False,
    ) -> Done:
        dones = [loaded.done for _, loaded in self._loaded]
        spent = Spent(*(sum(column) for column in zip(*(done.spent for done in dones), strict=True)))
        fresh = None if all(done.fresh is None for done in dones) else [False] * len(self.unit.indices)
        costs = [NOT_LOADED] * len(self.unit.indices) if any(done.costs for done in dones) else []
        for rows, loaded in self._loaded:
            for row, is_fresh in zip(rows, loaded.done.fresh or (), strict=False):
                assert fresh is not None
                fresh[row] = is_fresh
            for row, cost in zip(rows, loaded.done.costs, strict=False):
                costs[row] = cost
        return Done(
            self.unit.batch,
            self.unit.part,
            spent,
            objects=objects,
            errors=errors,
            mismatch=mismatch,
            fresh=fresh,
            costs=tuple(costs),
        )

    def _strings(self, errors: Sequence[SampleError]) -> list[list[str | bytes]] | None:
        """The columns of strings, of the rows that did not fail, in order."""
        failed = {error.row - self.unit.start for error in errors}
        found: dict[int, tuple[str | bytes, ...]] = {}
        for rows, loaded in self._loaded:
            if loaded.done.objects:
                good = [row for row in rows if row not in failed]
                found.update(zip(good, zip(*loaded.done.objects, strict=True), strict=True))
        if not found:
            return None
        return [list(column) for column in zip(*(found[row] for row in sorted(found)), strict=True)]


def copy_rows(
    source: NDArray[np.uint8],
    target: NDArray[np.uint8],
    layout: Layout,
    rows: range | list[int],
    start: int,
) -> None:
    """Copy rows that lie in `source`, one after the other, to their rows from `start` on in `target`."""
    packed = Layout(layout.spec, len(rows))
    first, count = start + rows[0], len(rows)
    together = isinstance(rows, range) or rows[-1] - rows[0] + 1 == count
    for leaf, here, there in zip(layout.leaves, packed.offsets, layout.offsets, strict=True):
        size = leaf.nbytes(1)
        if size == 0:
            continue
        values = source[here : here + count * size]
        if together:
            target[there + first * size : there + (first + count) * size] = values
        else:
            stop = there + layout.rows * size
            target[there:stop].reshape(layout.rows, size)[[start + row for row in rows]] = values.reshape(
                count, size
            )
