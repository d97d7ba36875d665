"""Sends batches to the workers, part by part, with the memory that their rows are written to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import BatchOrder
from rekindle.choose.position import CopyStates, DatasetState, with_copy
from rekindle.core.counters import Counters
from rekindle.run.batch_layout import Layout, Spec
from rekindle.run.in_flight_batch import InFlightBatch, Part
from rekindle.run.iterable_workers import Streams
from rekindle.run.messages import AssignSlot, Kind, LoadState, SetLayout, ToWorker, Unit
from rekindle.run.slots import SlotPool
from rekindle.run.window import Window
from rekindle.run.work_splitting import WorkSplitter
from rekindle.run.worker_pool import WorkerPool

_FEW_LOOSE = 4  # batches, after which half of all are too many


class Dispatcher:
    """Knows what is at the workers: the batches `in_flight`, by number, and which of them are `cancelled`.

    `kind` says how batches are put together; with "rows", the `layout` is learnt from the first sample.
    """

    def __init__(
        self,
        pool: WorkerPool,
        slots: SlotPool,
        *,
        seed: int,
        window: Window,
        kind: Kind,
        whole: bool,
        in_order: bool,
        counters: Counters,
    ) -> None:
        self._pool, self._slots, self._seed = pool, slots, seed
        self._window, self._in_order, self._counters = window, in_order, counters
        self.splitter = WorkSplitter(pool.size, whole=whole, in_order=in_order)
        self.streams = Streams(pool.size, active=[*range(pool.size)])
        self.states: CopyStates = (None,) * pool.size  # of the workers' copies, as far as they are known
        self.worker_seed: Callable[[int], int] = lambda _: 0  # by epoch
        self.kind = kind
        self.layout: Layout | None = None
        self._has_no_rows = False
        self.batch_nbytes = 0  # of packed batches, as far as known
        self.in_flight: dict[int, InFlightBatch] = {}
        self.cancelled: set[int] = set()
        self.issued = self._loose = self._parts_sent = self._largest_batch = 0

    def issue(self, order: BatchOrder, kind: Kind) -> InFlightBatch:
        """Send a batch to the workers."""
        rows, generations, turns = len(order.indices), _as_list(order.generations), _as_list(order.turns)
        if rows > self._largest_batch:
            self._largest_batch = rows
            self._window.note_batch(rows)
        if kind == "rows" and self.layout is not None and rows > self.layout.rows:
            kind = "batch"  # Larger than any before: it does not fit the slots.
        parts, layout = self._parts_of(order, kind), self.layout if kind == "rows" else None
        slot = None
        if layout is not None:
            slot = self._slots.take(layout.nbytes)
        elif kind != "rows" and self.batch_nbytes:
            slot = self._slots.take(self.batch_nbytes)
        # All that follows from the order is set here: a constructor of its own would be one more file on the
        # way of every batch.
        batch = InFlightBatch(
            number=self.issued,
            order=order,
            kind=kind,
            parts=parts,
            slot=slot,
            layout=layout,
            indices=order.indices,
            ids=order.ids,
            pending=len(parts),
            generations=generations,
            turns=turns,
        )
        self.issued += 1
        self.in_flight[batch.number] = batch
        self.send_parts(batch, range(len(batch.parts)))
        return batch

    def issue_again(self, batch: InFlightBatch, kind: Kind) -> InFlightBatch:
        """Send the same order once more; what was computed for it is found in the cache now."""
        again = self.issue(batch.order, kind)
        again.fresh_before = batch.fresh()
        return again

    def _parts_of(self, order: BatchOrder, kind: Kind) -> list[Part]:
        rows = len(order.indices)
        if kind != "stream":
            batches = self._window.usual
            whole = kind != "rows" or self._pool.splits
            return self.splitter.assign(order.step, rows, whole=whole, batches=batches)
        if self._in_order:
            return [Part(0, rows, self.streams.next())]
        return [Part(0, rows, self.splitter.choose(order.step, rows, self.streams.active))]

    def send_parts(self, batch: InFlightBatch, numbers: Sequence[int]) -> None:
        """Send some parts of a batch to their workers, all that one worker gets at once."""
        units: dict[int, list[Unit]] = {}  # by worker
        worker_seed = self.worker_seed(batch.order.epoch)
        for number in numbers:
            part = batch.parts[number]
            part.sent = self._parts_sent
            self._parts_sent += 1
            units.setdefault(part.worker, []).append(self._unit(batch, number, worker_seed))
        self._pool.send(units, () if batch.slot is None else (batch.slot,))

    def _unit(self, batch: InFlightBatch, number: int, worker_seed: int) -> Unit:
        """The message that has a part of a batch loaded."""
        order, part, generations, turns = batch.order, batch.parts[number], batch.generations, batch.turns
        rows = slice(part.start, part.stop)
        return Unit(
            batch=batch.number,
            part=number,
            kind=batch.kind,
            seed=self._seed,
            worker_seed=worker_seed,
            batch_turn=order.batch_turn,
            step=order.step,
            start=part.start,
            indices=batch.indices[rows],
            ids=None if order.plain else batch.ids[rows].tolist(),
            generations=generations if isinstance(generations, int) else generations[rows],
            turns=turns if isinstance(turns, int) else turns[rows],
            slot=None if batch.slot is None else batch.slot.number,
            careful=part.deaths > 0,
            timed=self._counters.costs is not None,
            epoch=order.epoch,
        )

    def use_layout(self, spec: Spec) -> None:
        """Have samples written to rows of this layout from now on, those that wait for it included."""
        layout = Layout(spec, max(self._largest_batch, 1))
        self._window.note_batch(layout.rows, layout.nbytes)
        self._slots.check_room(layout.nbytes)
        self.layout = layout
        waiting = [
            batch
            for batch in self.in_flight.values()
            if batch.kind == "rows" and batch.number not in self.cancelled
        ]
        messages: dict[int, list[ToWorker]] = {
            worker: [SetLayout(layout)] for worker in range(self._pool.size)
        }
        # The first alone: workers fill it while the kernel clears the memory of the others.
        for batches in (waiting[:1], waiting[1:]):
            slots = []
            for batch in batches:
                batch.layout, batch.slot = layout, self._slots.take(layout.nbytes)
                slots.append(batch.slot)
                for number, part in enumerate(batch.parts):
                    assigned = AssignSlot(batch.number, number, batch.slot.number)
                    messages.setdefault(part.worker, []).append(assigned)
            self._pool.send(messages, slots)
            messages = {}

    def use_no_layout(self) -> None:
        """Have samples that wait for a layout handed over as they are, and collate later batches whole."""
        self._has_no_rows = True
        self._collate_at_workers()
        self._pool.send({worker: [SetLayout(None)] for worker in range(self._pool.size)})

    def note_loose(self) -> None:
        """Note that samples of a batch did not fit its rows; where that is usual, workers collate them."""
        self._loose += 1
        if self.kind == "rows" and 2 * self._loose >= max(2 * _FEW_LOOSE, self.issued):
            self._collate_at_workers()

    def _collate_at_workers(self) -> None:
        self.kind = "batch"
        self._window.note_whole()

    def provide_slot(self, worker: int, number: int, part: int, nbytes: int) -> None:
        """Give a collated batch the room that it needs."""
        if number in self.cancelled:
            return
        batch = self.in_flight[number]
        if batch.kind == "rows":  # Its own slot is for the rows of the other parts.
            slot = batch.loose_slots[part] = self._slots.take(nbytes)
            self._pool.send({worker: [AssignSlot(number, part, slot.number)]}, (slot,))
            return
        if nbytes > self.batch_nbytes:
            self.batch_nbytes = nbytes + nbytes // 8
            self._slots.check_room(self.batch_nbytes)
        if batch.slot is not None:
            self._slots.give_back(batch.slot)
        batch.slot = self._slots.take(self.batch_nbytes)
        self._pool.send({worker: [AssignSlot(number, part, batch.slot.number)]}, (batch.slot,))

    def substitute_bad(self, batch: InFlightBatch) -> None:
        """Have other samples loaded in the rows of those that failed."""
        first_new, step = len(batch.parts), batch.order.step
        rows = batch.substitute_bad(self._seed)
        ranges = [(row, row + 1) for row in rows] if batch.kind == "rows" else [(0, len(batch.indices))]
        # Who loaded a whole batch has its good samples still.
        workers = range(self._pool.size) if batch.kind == "rows" else (batch.parts[-1].worker,)
        batch.parts += [Part(a, b, self.splitter.choose(step, b - a, workers)) for a, b in ranges]
        batch.pending = len(ranges)
        self.send_parts(batch, range(first_new, len(batch.parts)))

    def brief(self, worker: int) -> None:
        """Let a dead worker's replacement know what the others know."""
        if self.layout is not None or self._has_no_rows:
            self._pool.send({worker: [SetLayout(self.layout)]})
        if self.kind == "stream":
            self._pool.send({worker: [self.streams.start_message(worker)]})
        self.load_states(self.states, (worker,))

    def load_states(self, states: CopyStates, workers: Iterable[int]) -> None:
        """Note the states of all copies of a map-style dataset; put those of some workers into them."""
        self.states = states
        for worker in workers:
            state = states[worker]
            if isinstance(state, bytes):
                self._pool.send({worker: [LoadState(state)]})

    def note_state(self, worker: int, state: bytes | str) -> DatasetState:
        """Note the state of a worker's copy of a map-style dataset behind a batch, and return it."""
        self.states = with_copy(self.states, worker, state)
        return DatasetState(state)

    def lost_parts(self, worker: int) -> list[tuple[InFlightBatch, int]]:
        """What a worker was sent and has not brought back, in the order in which it would have."""
        lost = [
            (batch, number)
            for batch in self.in_flight.values()
            for number, part in enumerate(batch.parts)
            if part.worker == worker and not part.done
        ]
        return sorted(lost, key=lambda pair: pair[0].parts[pair[1]].sent)


def _as_list(numbers: int | NDArray[np.int64]) -> int | list[int]:
    return numbers if isinstance(numbers, int) else numbers.tolist()
