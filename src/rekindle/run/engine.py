"""The engine: has workers load the batches that are ordered, and yields them in order.

There is no thread here. All of it happens when the training loop asks for a batch: messages are read, parts
are sent, dead workers' parts are sent again. In between, workers live on the units that they were sent, up
to a `Window` of batches ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import BatchOrder, EndOfEpoch, Orders
from rekindle.choose.position import IterablePosition
from rekindle.core.counters import Counters
from rekindle.errors import LoaderTimeout, RekindleError
from rekindle.run import slots
from rekindle.run.bad_samples import BadSamples
from rekindle.run.batch_layout import Layout, Spec
from rekindle.run.copy_checks import CopyChecks
from rekindle.run.crash_policy import CrashPolicy
from rekindle.run.in_flight_batch import InFlightBatch, Part, SlotBatch, lost_parts
from rekindle.run.iterable_workers import Streams
from rekindle.run.messages import (
    AssignSlot,
    Cancel,
    Described,
    Done,
    Event,
    Kind,
    NeedSlot,
    Ready,
    SetLayout,
    StartFailed,
    WorkerDied,
)
from rekindle.run.window import Window
from rekindle.run.work_splitting import WorkSplitter
from rekindle.run.worker_pool import WorkerPool

_HEARTBEAT = 0.5  # seconds: how long to wait for workers before looking after them
_HELD_BY_CONSUMER = 2  # batches: the one in use and the one before it
_MOST_HELD = 8  # batches: some are kept to look at; who keeps them all would use up the descriptors


class Engine:
    """Has batches loaded, a `window` of them ahead of the training loop.

    `rows` says that samples may be written straight to their rows; whether they can is learnt from the first
    one. `iterable` says that the dataset is an IterableDataset.
    """

    def __init__(
        self,
        pool: WorkerPool,
        slot_pool: slots.SlotPool,
        *,
        seed: int,
        window: Window,
        rows: bool,
        whole: bool,
        iterable: bool,
        in_order: bool,
        timeout: float,
        watched: bool,
        bad_samples: BadSamples,
        counters: Counters,
    ) -> None:
        self._pool, self._slots, self._seed = pool, slot_pool, seed
        self._window, self._in_order, self._timeout = window, in_order, timeout
        self._bad_samples, self._counters = bad_samples, counters
        self._splitter = WorkSplitter(pool.size, whole=whole, in_order=in_order)
        self._kind: Kind = "stream" if iterable else "rows" if rows else "batch"
        self._layout: Layout | None = None
        self._batch_nbytes = 0  # of packed batches, as far as known
        self._orders: Orders = iter(())
        self._worker_seed: Callable[[int], int] = lambda _: 0
        self._queue: deque[InFlightBatch | EndOfEpoch] = deque()  # in the order in which they are yielded
        self._finished: deque[InFlightBatch] = deque()  # in the order of completion
        self._in_flight: dict[int, InFlightBatch] = {}  # by number: those with parts at workers
        self._cancelled: set[int] = set()
        self._issued = self._parts_sent = 0
        self._largest_batch = 0
        self._streams = Streams(pool.size)
        self._crashes = CrashPolicy(pool.size)
        self.copies = CopyChecks(pool, self._receive) if watched else None
        self.closed = self._is_cleared = False
        self.steady = True

    @property
    def workers(self) -> Sequence[BaseProcess | Thread]:
        """The worker processes or threads."""
        return self._pool.workers

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Load what these orders say from now on; what is in flight is dropped.

        `worker_seed` gives what torch would have seeded an epoch's workers with.
        """
        self._drop_queue()
        self._worker_seed = worker_seed
        self._orders = orders
        self._dispatch()

    def begin_iterable(self, orders: Orders, batch_size: int, position: IterablePosition) -> None:
        """The same for an iterable dataset, whose workers go on from a position."""
        self._drop_queue()
        self._worker_seed = lambda _: position.base_seed
        for worker, message in enumerate(self._streams.start(batch_size, position)):
            self._pool.send(worker, [message])
        self._orders = orders
        self._dispatch()

    def next(self) -> SlotBatch | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        deadline = time.monotonic() + self._timeout if self._timeout else float("inf")
        while True:
            ready = self.poll()
            if ready is not None:
                return ready
            left = deadline - time.monotonic()
            if left <= 0:
                self.steady = True
                raise LoaderTimeout(
                    f"DataLoader timed out after {self._timeout} seconds: no worker finished a batch. "
                    "Raise timeout=, or look for what holds the dataset up."
                )
            self.steady = self._pool.waits_steadily
            self._pool.wait(min(_HEARTBEAT, left))

    def poll(self) -> SlotBatch | EndOfEpoch | None:
        """What `next` would give, if it is there already."""
        self.steady = False
        try:
            self._receive()
            ready = self._take_ready()
        except RekindleError:
            self.steady = True
            raise
        self._dispatch()  # Now: what is taken makes room, and workers go on while the loop is at work.
        return ready

    def close(self) -> None:
        """End the workers and let go of the memory that no batch is using."""
        self.closed = True
        if not self._is_cleared:  # Also if an interrupt came while it was.
            self._pool.close()
            for batch in self._in_flight.values():
                self._free(batch)
            self._drop_queue()
            self._slots.close()
            self._is_cleared = True

    # Out: orders become batches in flight, whose parts go to workers.

    def _dispatch(self) -> None:
        while len(self._queue) < self._window.size:
            if self._kind == "stream" and not self._streams.active:
                break
            order = next(self._orders, None)
            if order is None:
                break
            if isinstance(order, EndOfEpoch):
                self._queue.append(order)
            else:
                self._queue.append(self._issue(order, self._kind))

    def _issue(self, order: BatchOrder, kind: Kind) -> InFlightBatch:
        rows = len(order.indices)
        if rows > self._largest_batch:
            self._largest_batch = rows
            self._window.note_batch(rows)
        if kind == "rows" and self._layout is not None and rows > self._layout.rows:
            kind = "batch"  # Larger than any before: it does not fit the slots.
        batch = InFlightBatch.of(self._issued, order, kind, self._parts_of(order, kind))
        self._issued += 1
        if kind == "rows" and self._layout is not None:
            batch.layout, batch.slot = self._layout, self._slots.take(self._layout.nbytes)
        elif kind != "rows" and self._batch_nbytes:
            batch.slot = self._slots.take(self._batch_nbytes)
        self._in_flight[batch.number] = batch
        self._send_parts(batch, range(len(batch.parts)))
        return batch

    def _parts_of(self, order: BatchOrder, kind: Kind) -> list[Part]:
        rows = len(order.indices)
        if kind != "stream":
            batches = self._window.size
            assigned = self._splitter.assign(order.step, rows, whole=kind != "rows", batches=batches)
            return [Part(*one) for one in assigned]
        if self._in_order:
            return [Part(0, rows, self._streams.next())]
        return [Part(0, rows, self._splitter.choose(order.step, rows, self._streams.active))]

    def _send_parts(self, batch: InFlightBatch, numbers: Sequence[int]) -> None:
        """Send some parts of a batch to their workers, all that one worker gets at once."""
        for number in numbers:
            batch.parts[number].sent = self._parts_sent
            self._parts_sent += 1
        worker_seed, timed = self._worker_seed(batch.order.epoch), self._counters.costs is not None
        used = () if batch.slot is None else (batch.slot,)
        for worker, units in batch.units(numbers, self._seed, worker_seed, timed).items():
            self._pool.send(worker, units, used)

    def _receive(self) -> None:
        try:
            for worker, message in self._pool.poll():
                self._handle(worker, message)
        except RekindleError:  # Not of one batch but of them all: nothing can go on after it.
            self.close()
            raise

    def _handle(self, worker: int, message: Event) -> None:
        if self.copies is not None:
            self.copies.note(worker, message)
        match message:
            case Done():
                self._done(worker, message)
            case Described(number, _, spec, asked):
                if number not in self._cancelled:
                    self._decide_layout(spec, asked)
            case NeedSlot(number, part, nbytes):
                self._provide_slot(worker, number, part, nbytes)
            case Ready():
                self._crashes.started(worker)
            case StartFailed(exception):
                self.close()
                self.steady = True
                exception.reraise()
            case WorkerDied():
                self._counters.replaced_workers += 1
                self._send_again(message)

    def _decide_layout(self, spec: Spec | None, asked_which_worker: bool) -> None:
        """Decide from the first sample how batches are put together; tell every worker."""
        if self._layout is not None or self._kind != "rows":
            return
        if spec is None or (asked_which_worker and not self._splitter.whole):
            self._kind = "rows" if spec is not None else "batch"
            self._splitter.whole = self._splitter.whole or asked_which_worker
            self._window.note_whole()
            self._start_over()
            return
        layout = Layout(spec, max(self._largest_batch, 1))
        self._window.note_batch(layout.rows, layout.nbytes)
        slots.check_room(layout.nbytes, self._window.size + _HELD_BY_CONSUMER)
        self._layout = layout
        for worker in range(self._pool.size):
            self._pool.send(worker, [SetLayout(layout)])
        for batch in self._in_flight.values():
            if batch.kind == "rows" and batch.number not in self._cancelled:
                batch.layout, batch.slot = layout, self._slots.take(layout.nbytes)
                for number, part in enumerate(batch.parts):
                    assign = AssignSlot(batch.number, number, batch.slot.number)
                    self._pool.send(part.worker, [assign], (batch.slot,))

    def _start_over(self) -> None:
        """Drop what is in flight and issue the same orders again."""
        queue = list(self._queue)
        self._drop_queue()
        for item in queue:
            self._queue.append(
                self._issue_again(item, self._kind) if isinstance(item, InFlightBatch) else item
            )

    def _issue_again(self, batch: InFlightBatch, kind: Kind) -> InFlightBatch:
        """The same order once more; what was computed for it is found in the cache now."""
        again = self._issue(batch.order, kind)
        again.fresh = batch.fresh
        return again

    def _provide_slot(self, worker: int, number: int, part: int, nbytes: int) -> None:
        """Give a collated batch the room that it needs."""
        if number in self._cancelled:
            return
        batch = self._in_flight[number]
        if nbytes > self._batch_nbytes:
            self._batch_nbytes = nbytes + nbytes // 8
            slots.check_room(self._batch_nbytes, self._window.size + _HELD_BY_CONSUMER)
        if batch.slot is not None:
            self._slots.give_back(batch.slot)
        batch.slot = self._slots.take(self._batch_nbytes)
        self._pool.send(worker, [AssignSlot(number, part, batch.slot.number)], (batch.slot,))

    def _done(self, worker: int, done: Done) -> None:
        batch = self._in_flight[done.batch]
        part = batch.parts[done.part]
        spent, counters = done.spent, self._counters
        batch.spent.append(spent)
        if done.costs and counters.costs is not None:
            counters.costs.add(batch.ids[part.start : part.stop], done.costs)
        if batch.kind == "stream":
            batch.dataset_state = self._streams.finished(worker, done)
            batch.missing = len(batch.indices) - spent.samples if not done.errors else 0
        self._splitter.completed(worker, part.stop - part.start, spent.samples, spent.load_seconds)
        part.done = True
        batch.pending -= 1
        for error in done.errors:
            batch.errors[error.row] = error
        if batch.number in self._cancelled:
            if batch.pending == 0:
                self._forget(batch)
            return
        if done.mismatch:
            self._collate_whole(batch)
            return
        if done.objects:
            batch.keep_strings(part, done.objects)
        batch.sizes, batch.packed = done.sizes, done.packed
        batch.ended = done.ended
        if done.fresh is not None:
            batch.note_fresh(part, done.fresh)
        if batch.pending == 0:
            self._complete(batch)

    def _collate_whole(self, batch: InFlightBatch) -> None:
        """Samples do not fit the layout: let the collate function see them all at once."""
        self._queue[self._queue.index(batch)] = self._issue_again(batch, "batch")
        self._cancel(batch)
        if batch.pending == 0:
            self._forget(batch)

    def _complete(self, batch: InFlightBatch) -> None:
        """All parts are back: the batch is ready, or its bad samples are substituted first."""
        if batch.errors and self._bad_samples.on_error == "substitute" and -1 not in batch.errors:
            self._substitute_bad(batch)
            return
        self._leave_flight(batch)
        if batch.ended:
            self._free(batch)
            self._queue.remove(batch)
        else:
            self._finished.append(batch)

    def _substitute_bad(self, batch: InFlightBatch) -> None:
        first_new, step = len(batch.parts), batch.order.step
        rows = batch.substitute_bad(self._seed)
        ranges = [(row, row + 1) for row in rows] if batch.kind == "rows" else [(0, len(batch.indices))]
        workers = range(self._pool.size)
        batch.parts += [Part(a, b, self._splitter.choose(step, b - a, workers)) for a, b in ranges]
        batch.pending = len(ranges)
        self._send_parts(batch, range(first_new, len(batch.parts)))

    def _send_again(self, death: WorkerDied) -> None:
        """Have the parts of dead workers loaded by their replacements."""
        lost = {worker: lost_parts(self._in_flight.values(), worker) for worker in death.rows}
        first = {worker: parts[0] for worker, parts in lost.items() if parts}
        self._crashes.died(death, {worker: (batch, batch.parts[n]) for worker, (batch, n) in first.items()})
        for worker, parts in lost.items():
            self._send_to_replacement(worker, parts)

    def _send_to_replacement(self, worker: int, lost: list[tuple[InFlightBatch, int]]) -> None:
        if self._layout is not None:
            self._pool.send(worker, [SetLayout(self._layout)])
        if self._kind == "stream":
            self._pool.send(worker, [self._streams.start_message(worker)])
        for batch, number in lost:
            if batch.number in self._cancelled:
                batch.parts[number].done = True
                batch.pending -= 1
                if batch.pending == 0:
                    self._forget(batch)
            else:
                self._send_parts(batch, [number])

    def _take_ready(self) -> SlotBatch | EndOfEpoch | None:
        """What is next in the queue, if it is ready."""
        if not self._queue:
            epoch_is_over = self._kind == "stream" and not self._streams.active
            return EndOfEpoch(-1) if epoch_is_over else None
        head = self._queue[0]
        if isinstance(head, EndOfEpoch):
            self._queue.popleft()
            return head
        if self._in_order:
            if head.number in self._in_flight:
                return None
            batch = head
        else:
            epoch = head.order.epoch
            ready = [finished for finished in self._finished if finished.order.epoch == epoch]
            if not ready:
                return None
            batch = ready[0]
        self._queue.remove(batch)
        self._finished.remove(batch)
        return self._deliver(batch)

    def _deliver(self, batch: InFlightBatch) -> SlotBatch | EndOfEpoch | None:
        bad = sorted(batch.errors)
        if bad and (bad[0] < 0 or self._bad_samples.on_error == "raise"):
            self._free(batch)
            self.steady = True
            batch.errors[bad[0]].exception.reraise()
        for found in batch.bad_samples() if bad or batch.failures.found else ():
            self._bad_samples.note(found, batch.order)
        if len(bad) == len(batch.indices) > 0:
            self._free(batch)
            return self._take_ready()  # Nothing is left of this batch.
        return batch.filled(self._memory(batch))

    def _memory(self, batch: InFlightBatch) -> NDArray[np.uint8]:
        if batch.packed is not None:
            self._free(batch)
            return np.frombuffer(bytearray(batch.packed), dtype=np.uint8)
        assert batch.slot is not None
        if self._slots.leased < _MOST_HELD:
            return self._slots.lease(batch.slot)
        # The training loop keeps its batches: this one gets memory of its own, and the slot goes on.
        used = batch.layout.nbytes if batch.layout is not None else self._batch_nbytes
        copy = batch.slot.array[:used].copy()
        self._free(batch)
        return copy

    def _drop_queue(self) -> None:
        for item in self._queue:
            if isinstance(item, InFlightBatch):
                self._cancel(item)
        self._queue.clear()
        self._finished.clear()
        if not self.closed:
            for worker in range(self._pool.size):
                self._pool.send(worker, [Cancel(self._issued)])

    def _cancel(self, batch: InFlightBatch) -> None:
        if batch.number in self._in_flight:
            self._cancelled.add(batch.number)
        else:
            self._free(batch)

    def _forget(self, batch: InFlightBatch) -> None:
        self._cancelled.discard(batch.number)
        self._leave_flight(batch)
        self._free(batch)

    def _leave_flight(self, batch: InFlightBatch) -> None:
        del self._in_flight[batch.number]
        samples, load, collate, idle, nbytes = (sum(column) for column in zip(*batch.spent, strict=True))
        self._counters.add_worker_time(samples, load, collate, idle, nbytes)

    def _free(self, batch: InFlightBatch) -> None:
        if batch.slot is not None:
            self._slots.give_back(batch.slot)
            batch.slot = None
