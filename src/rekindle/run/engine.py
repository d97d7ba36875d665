"""The engine: has workers load the batches that are ordered, and yields them in order.

There is no thread here. All of it happens when the training loop asks for a batch: messages are read, parts
are sent, dead workers' parts are sent again. In between, workers live on the units that they were sent, up
to `window` batches ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from threading import Thread

from rekindle.choose import EndOfEpoch, Orders
from rekindle.choose.position import CopyStates, IterablePosition
from rekindle.core.counters import Counters
from rekindle.core.interrupts import is_interrupt
from rekindle.errors import LoaderTimeout, RekindleError
from rekindle.run import batch_memory, loose_samples, slots
from rekindle.run.bad_samples import BadSamples
from rekindle.run.batch_layout import Spec
from rekindle.run.copy_checks import CopyChecks
from rekindle.run.crash_policy import CrashPolicy
from rekindle.run.dispatch import Dispatcher
from rekindle.run.forked_engines import close_in_children
from rekindle.run.in_flight_batch import CollatedBatch, InFlightBatch, SlotBatch
from rekindle.run.messages import (
    Cancel,
    CopyChecked,
    Described,
    Done,
    Event,
    NeedSlot,
    Ready,
    Replaced,
    StartFailed,
    WorkerDied,
)
from rekindle.run.window import Window
from rekindle.run.work_splitting import Load
from rekindle.run.worker_pool import WorkerPool

_HEARTBEAT = 0.5  # seconds: how long to wait for workers before looking after them


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
        self._pool, self._slots = pool, slot_pool
        self._window, self._in_order, self._timeout = window, in_order, timeout
        self._bad_samples, self._counters = bad_samples, counters
        self._dispatcher = Dispatcher(
            pool,
            slot_pool,
            seed=seed,
            window=window,
            kind="stream" if iterable else "rows" if rows else "batch",
            whole=whole,
            in_order=in_order,
            counters=counters,
        )
        self._orders: Orders = iter(())
        self._queue: deque[InFlightBatch | EndOfEpoch] = deque()  # in the order in which they are yielded
        self._finished: deque[InFlightBatch] = deque()  # in the order of completion
        self._crashes = CrashPolicy(pool.size)
        self.copies = CopyChecks(pool, self._receive) if watched else None
        self.closed = self._is_cleared = False
        self._steady = True
        close_in_children(self)

    @property
    def workers(self) -> Sequence[BaseProcess | Thread]:
        """The worker processes or threads."""
        return self._pool.workers

    @property
    def steady(self) -> bool:
        """Whether `next`, left by an exception, may be called again: nothing is half done."""
        return self._steady or self._pool.waiting

    @property
    def states(self) -> CopyStates:
        """The states of the workers' copies of a map-style dataset, as far as they are known."""
        return self._dispatcher.states

    def load_states(self, states: CopyStates, *, are_there: bool) -> None:
        """Put the workers' copies into these states, unless they are known to be there."""
        self._dispatcher.load_states(states, () if are_there else range(self._pool.size))

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Load what these orders say from now on; what is in flight is dropped.

        `worker_seed` gives what torch would have seeded an epoch's workers with.
        """
        self._drop_queue()
        self._dispatcher.worker_seed = worker_seed
        self._orders = orders
        self._dispatch()

    def begin_iterable(self, orders: Orders, batch_size: int, position: IterablePosition) -> None:
        """The same for an iterable dataset, whose workers go on from a position."""
        self._drop_queue()
        self._dispatcher.worker_seed = lambda _: position.base_seed
        starts = self._dispatcher.streams.start(batch_size, position)
        self._pool.send({worker: [message] for worker, message in enumerate(starts)})
        self._orders = orders
        self._dispatch()

    def next(self) -> SlotBatch | CollatedBatch | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        left = self._timeout or float("inf")
        deadline = time.monotonic() + left
        while (ready := self._advance(min(_HEARTBEAT, left))) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self._steady = True
                raise LoaderTimeout(
                    f"DataLoader timed out after {self._timeout} seconds: no worker finished a batch. "
                    "Raise timeout=, or look for what holds the dataset up."
                )
        return ready

    def poll(self) -> SlotBatch | CollatedBatch | EndOfEpoch | None:
        """What `next` would give, if it is there already."""
        return self._advance(0)

    def _advance(self, timeout: float) -> SlotBatch | CollatedBatch | EndOfEpoch | None:
        """The next batch; if it is not ready, after what workers report within `timeout` seconds."""
        self._steady = False
        try:
            self._receive(0 if self._ready() is not None else timeout)
            ready = self._take_ready()
        except RekindleError:
            self._steady = True
            raise
        self._dispatch()  # Now: what is taken makes room, and workers go on while the loop is at work.
        return ready

    def close(self) -> None:
        """End the workers and let go of the memory that no batch is using."""
        self.closed = True
        if not self._is_cleared:  # Also if an interrupt came while it was.
            self._pool.close()
            for batch in self._dispatcher.in_flight.values():
                self._free(batch)
            self._drop_queue()
            self._slots.close()
            self.copies = None  # They refer back to this, so a dataset would outlive its loader.
            self._is_cleared = True

    # Out: orders become batches in flight, whose parts go to workers.

    def _dispatch(self) -> None:
        streams, window = self._dispatcher.streams, self._window
        # Of those beyond the usual number one at a time: the loop does not wait until all are issued.
        most = len(self._queue) + 1
        while len(self._queue) < min(window.size, max(window.usual, most)) and streams.active:
            order = next(self._orders, None)
            if order is None:
                break
            if isinstance(order, EndOfEpoch):
                self._queue.append(order)
            else:
                self._queue.append(self._dispatcher.issue(order, self._dispatcher.kind))

    def _receive(self, timeout: float) -> None:
        try:
            for worker, message in self._pool.poll(timeout, *self._awaited()):
                self._handle(worker, message)
        except RekindleError:  # Not of one batch but of them all: nothing can go on after it.
            self.close()
            raise

    def _awaited(self) -> tuple[int, int | None]:
        """How many units have to be done, of which batch, before there is anything to yield or to send."""
        head = self._queue[0] if self._queue and self._in_order else None
        return (head.pending, head.number) if isinstance(head, InFlightBatch) else (1, None)

    def _handle(self, worker: int, message: Event) -> None:
        match message:
            case Done():
                self._done(worker, message)
            case Described(number, _, spec, asked):
                if number not in self._dispatcher.cancelled:
                    self._decide_layout(spec, asked)
            case NeedSlot(number, part, nbytes):
                self._dispatcher.provide_slot(worker, number, part, nbytes)
            case CopyChecked(epoch, unchanged):
                if self.copies is not None:
                    self.copies.note(worker, epoch, unchanged)
            case Ready():
                self._crashes.started[worker] = True
            case StartFailed(exception):
                self.close()
                self._steady = True
                exception.reraise()
            case Replaced(workers):
                self._counters.replaced_workers += len(workers)
                if self.copies is not None:
                    self.copies.renewed(workers)
            case WorkerDied():
                self._counters.replaced_workers += 1
                if self.copies is not None:
                    self.copies.renewed(message.rows)
                self._send_again(message)

    def _decide_layout(self, spec: Spec | None, asked_which_worker: bool) -> None:
        """Decide from the first sample how batches are put together; tell every worker."""
        dispatcher, splitter = self._dispatcher, self._dispatcher.splitter
        if dispatcher.layout is not None or dispatcher.kind != "rows":
            return
        spec = None if spec is None or (spec.is_long and self._slots.shared) else spec
        if spec is None and not self._pool.splits and (splitter.whole or not asked_which_worker):
            dispatcher.use_no_layout()
            return
        if spec is None or (asked_which_worker and not splitter.whole):
            dispatcher.kind = "rows" if spec is not None else "batch"
            splitter.whole = splitter.whole or asked_which_worker
            self._window.note_whole()
            self._start_over()
            return
        dispatcher.use_layout(spec)

    def _start_over(self) -> None:
        """Drop what is in flight and issue the same orders again."""
        queue = list(self._queue)
        self._drop_queue()
        dispatcher = self._dispatcher
        for item in queue:
            if isinstance(item, InFlightBatch):
                self._queue.append(dispatcher.issue_again(item, dispatcher.kind))
            else:
                self._queue.append(item)

    def _done(self, worker: int, done: Done) -> None:
        batch = self._dispatcher.in_flight[done.batch]
        part = batch.parts[done.part]
        spent, counters = done.spent, self._counters
        load = Load(worker, part.stop - part.start, spent.samples, spent.load_seconds)
        self._dispatcher.splitter.came_back.append(load)
        if done.costs and counters.costs is not None:
            counters.costs.add(batch.ids[part.start : part.stop], done.costs)
        is_cancelled = batch.number in self._dispatcher.cancelled
        if batch.kind == "stream" and not is_cancelled:  # One that is belongs to an earlier pass.
            batch.dataset_state = self._dispatcher.streams.finished(worker, done)
            batch.missing = len(batch.indices) - spent.samples if not done.errors else 0
        elif done.dataset_state is not None:
            batch.dataset_state = self._dispatcher.note_state(worker, done.dataset_state)
        part.done = True
        batch.pending -= 1
        batch.results.append((part, done))
        batch.is_loose = batch.is_loose or bool(done.loose)
        for error in done.errors:
            batch.errors[error.row] = error
        if is_cancelled:
            if batch.pending == 0:
                self._forget(batch)
        elif done.mismatch:
            self._collate_whole(batch)
        elif batch.pending == 0:
            self._complete(batch)

    def _collate_whole(self, batch: InFlightBatch) -> None:
        """Samples that cannot be handed over as they are: let the collate function see them all at once."""
        self._dispatcher.note_loose()
        self._queue[self._queue.index(batch)] = self._dispatcher.issue_again(batch, "batch")
        self._cancel(batch)
        if batch.pending == 0:
            self._forget(batch)

    def _complete(self, batch: InFlightBatch) -> None:
        """All parts are back: the batch is ready, or its bad samples are substituted first."""
        errors = batch.errors
        if errors and self._bad_samples.substitutes(len(errors), len(batch.indices)) and -1 not in errors:
            self._dispatcher.substitute_bad(batch)
            return
        self._leave_flight(batch)
        if batch.results[-1][1].ended:
            self._free(batch)
            self._queue.remove(batch)
        else:
            self._finished.append(batch)

    def _send_again(self, death: WorkerDied) -> None:
        """Have the parts of dead workers loaded by their replacements."""
        lost = {worker: self._dispatcher.lost_parts(worker) for worker in death.rows}
        first = {worker: parts[0] for worker, parts in lost.items() if parts}
        self._crashes.died(death, {worker: (batch, batch.parts[n]) for worker, (batch, n) in first.items()})
        for worker, parts in lost.items():
            self._dispatcher.brief(worker)
            for batch, number in parts:
                if batch.number in self._dispatcher.cancelled:
                    batch.parts[number].done = True
                    batch.pending -= 1
                    if batch.pending == 0:
                        self._forget(batch)
                else:
                    self._dispatcher.send_parts(batch, [number])

    def _ready(self) -> InFlightBatch | EndOfEpoch | None:
        """What is next in the queue, if it is ready."""
        if not self._queue:
            return None if self._dispatcher.streams.active else EndOfEpoch(-1)
        head = self._queue[0]
        if isinstance(head, EndOfEpoch):
            return head
        if self._in_order:
            return None if head.number in self._dispatcher.in_flight else head
        epoch = head.order.epoch
        return next((batch for batch in self._finished if batch.order.epoch == epoch), None)

    def _take_ready(self) -> SlotBatch | CollatedBatch | EndOfEpoch | None:
        ready = self._ready()
        if ready is None:
            return None
        if isinstance(ready, EndOfEpoch):
            if self._queue:
                self._queue.popleft()
            return ready
        self._queue.remove(ready)
        self._finished.remove(ready)
        return self._deliver(ready)

    def _deliver(self, batch: InFlightBatch) -> SlotBatch | CollatedBatch | EndOfEpoch | None:
        bad = sorted(batch.errors)
        if bad and (bad[0] < 0 or self._bad_samples.on_error == "raise"):
            self._free(batch)
            self._steady = True
            batch.errors[bad[0]].exception.reraise()
        for found in batch.bad_samples() if bad or batch.failures.found else ():
            self._bad_samples.note(found, batch.order)
        if len(bad) == len(batch.indices) > 0:
            self._free(batch)
            return self._take_ready()  # Nothing is left of this batch.
        if not batch.is_loose:
            return batch.filled(batch_memory.of_batch(batch, self._slots))
        try:
            self._dispatcher.note_loose()
            return batch.collated(loose_samples.collated(batch))
        except Exception as error:
            self._steady = not is_interrupt(error)
            raise
        finally:
            self._free(batch)

    def _drop_queue(self) -> None:
        for item in self._queue:
            if isinstance(item, InFlightBatch):
                self._cancel(item)
        self._queue.clear()
        self._finished.clear()
        if self._dispatcher.issued and not self.closed:
            self._pool.send(dict.fromkeys(range(self._pool.size), (Cancel(self._dispatcher.issued),)))

    def _cancel(self, batch: InFlightBatch) -> None:
        if batch.number in self._dispatcher.in_flight:
            self._dispatcher.cancelled.add(batch.number)
        else:
            self._free(batch)

    def _forget(self, batch: InFlightBatch) -> None:
        self._dispatcher.cancelled.discard(batch.number)
        self._leave_flight(batch)
        self._free(batch)

    def _leave_flight(self, batch: InFlightBatch) -> None:
        del self._dispatcher.in_flight[batch.number]
        samples = nbytes = 0
        load = collate = idle = 0.0
        # Added here: a call for each column would cost more. None is back if all its workers have died.
        for _, done in batch.results:
            samples, nbytes = samples + done.spent.samples, nbytes + done.spent.nbytes
            load, collate = load + done.spent.load_seconds, collate + done.spent.collate_seconds
            idle += done.spent.idle_seconds
        self._counters.add_worker_time(samples, load, collate, idle, nbytes)

    def _free(self, batch: InFlightBatch) -> None:
        batch_memory.free(batch, self._slots)
