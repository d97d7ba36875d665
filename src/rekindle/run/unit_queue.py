"""A worker's queue: the units it has to load, the slots they go to, and the answers it sends."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from rekindle.core.samples import Index
from rekindle.run.batch_layout import Layout, Rows, Spec, writable
from rekindle.run.messages import (
    AssignSlot,
    Cancel,
    CheckCopy,
    Described,
    Done,
    LoadState,
    NeedSlot,
    SampleError,
    SetLayout,
    Spent,
    StartStream,
    Unit,
    UnmapSlots,
)
from rekindle.run.sample_loader import SampleLoader
from rekindle.run.sample_timing import Cost
from rekindle.run.worker_pool import Channel


class UnitResult(TypedDict, total=False):
    """What a finished unit reports, by the names of `Done`."""

    objects: list[list[str | bytes]] | None
    sizes: list[int] | None
    packed: bytes | None
    errors: tuple[SampleError, ...]
    loose: bool
    mismatch: bool
    ended: bool
    fresh: list[bool] | None
    dataset_state: bytes | str | None


class CancelledError(Exception):
    """Nobody waits for this unit any more."""


class UnitQueue:
    """Units in the order in which the engine sent them; reads all other messages on the way.

    `collate_seconds` and `nbytes` are of the unit being worked on, and reset when it is done.
    """

    def __init__(
        self,
        channel: Channel,
        loader: SampleLoader,
        start_stream: Callable[[StartStream], None],
        load_state: Callable[[bytes], None],
        check_copy: Callable[[int], None],
        will_need: Callable[[Sequence[Index]], None] | None,
    ) -> None:
        self._channel, self._loader = channel, loader
        self._start_stream, self._load_state = start_stream, load_state
        self._check_copy, self._will_need = check_copy, will_need
        self._units: deque[Unit] = deque()
        self._assigned: dict[tuple[int, int], int] = {}
        self._cancelled_before = 0
        self.layout: Layout | None = None
        self.has_no_rows = False  # Samples have no layout, and are handed over as they are.
        self._rows: dict[int, list[Rows | None]] = {}
        self.collate_seconds = self._idle_seconds = 0.0
        self.nbytes = 0

    def next(self) -> Unit | None:
        """The next unit, waiting for it; None when the engine has closed the connection."""
        while self._channel.waiting() or not self._units:
            if not self._read():
                return None
        return self._units.popleft()

    def is_cancelled(self, unit: Unit) -> bool:
        """Whether nobody waits for a unit any more."""
        return unit.batch < self._cancelled_before

    def wants(self, batch: int) -> bool:
        """Whether somebody may still wait for a batch."""
        return batch >= self._cancelled_before

    def _read(self) -> bool:
        """Handle one message; false when there will be no more."""
        started = time.perf_counter()
        message = self._channel.receive()
        self._idle_seconds += time.perf_counter() - started
        match message:
            case None:
                return False
            case Unit():
                self._units.append(message)
                if self._will_need is not None:
                    self._announce(self._will_need, message)
            case AssignSlot(batch, part, slot):
                self._assigned[batch, part] = slot
            case SetLayout(layout):
                self.layout, self.has_no_rows = layout, layout is None
                self._rows.clear()
            case Cancel(before):
                self._cancelled_before = max(before, self._cancelled_before)
            case UnmapSlots(slots):
                for slot in slots:
                    self._rows.pop(slot, None)
                    self._channel.slots.pop(slot, None)
            case StartStream():
                self._start_stream(message)
            case LoadState(state):
                self._load_state(state)
            case CheckCopy(epoch):
                self._check_copy(epoch)
        return True

    def _announce(self, will_need: Callable[[Sequence[Index]], None], unit: Unit) -> None:
        """Let the dataset start to fetch samples that it will be asked for."""
        if unit.kind != "stream" and not self.is_cancelled(unit):
            with contextlib.suppress(Exception):  # What is wrong shows when the samples are loaded.
                will_need(unit.indices)

    # Slots.

    def row_slot(self, unit: Unit) -> int | None:
        """The number of the slot for a unit's rows; None if the engine has decided that there are none."""
        while unit.slot is None and self.layout is None and not self.has_no_rows:
            if self.is_cancelled(unit) or not self._read():
                raise CancelledError
        return None if self.has_no_rows else self.slot(unit)

    def slot(self, unit: Unit) -> int:
        """The number of the unit's slot, which the engine may still have to assign."""
        if unit.slot is not None:
            return unit.slot
        while (unit.batch, unit.part) not in self._assigned:
            if self.is_cancelled(unit) or not self._read():
                raise CancelledError
        return self._assigned.pop((unit.batch, unit.part))

    def rows(self, slot: int) -> list[Rows | None]:
        """The leaves of the batch in a slot: all rows, as they are written to; None for strings."""
        rows = self._rows.get(slot)
        if rows is None:
            assert self.layout is not None
            tensors = self.layout.tensors(self._channel.slots[slot], self.layout.rows)
            rows = [
                None if tensor is None else writable(leaf, tensor)
                for leaf, tensor in zip(self.layout.leaves, tensors, strict=True)
            ]
            self._rows[slot] = rows
        return rows

    def memory(self, unit: Unit, nbytes: int) -> NDArray[np.uint8]:
        """The memory of the unit's slot, or of a larger one that the engine assigns now."""
        if unit.slot is None or self._channel.slots[unit.slot].nbytes < nbytes:
            self._channel.send(NeedSlot(unit.batch, unit.part, nbytes))
            unit = unit._replace(slot=None)
        return self._channel.slots[self.slot(unit)]

    # Answers.

    def describe(self, unit: Unit, spec: Spec | None, uses_worker_id: bool) -> None:
        """Tell the engine what samples look like."""
        self._channel.send(Described(unit.batch, unit.part, spec, uses_worker_id))

    def done(self, unit: Unit, samples: int = 0, **result: Unpack[UnitResult]) -> None:
        """Tell the engine that a unit is finished, with so many samples in it."""
        loader = self._loader
        spent = Spent(samples, loader.seconds, self.collate_seconds, self._idle_seconds, self.nbytes)
        loader.seconds = self.collate_seconds = self._idle_seconds = 0.0
        self.nbytes = 0
        costs = tuple(loader.costs)
        if unit.timed and not costs and samples:  # Loaded all at once: each sample has the same share.
            costs = (Cost(spent.load_seconds / samples, -1),) * len(unit.indices)
        loader.costs.clear()
        if loader.fresh:
            result.setdefault("fresh", loader.fresh)
            loader.fresh = []
        self._channel.send(Done(unit.batch, unit.part, spent, costs=costs, **result))
