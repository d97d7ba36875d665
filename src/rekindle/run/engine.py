"""The engine: carries out orders with a crew of workers, and hands over the batches in order.

There is no thread here. All of it happens when the training loop asks for a batch: messages are read, parts
are dealt, dead workers' parts are sent again. In between, workers live on the units that they were sent, up
to `window` batches ahead.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rekindle.choose import BatchOrder, EndOfEpoch, Orders
from rekindle.counters import Counters
from rekindle.errors import LoaderTimeout, RekindleError
from rekindle.run import slots
from rekindle.run.bad_samples import BadSamples
from rekindle.run.blame import Blame
from rekindle.run.dealing import Dealer
from rekindle.run.layout import Layout, Spec
from rekindle.run.messages import (
    Arrange,
    Cancel,
    Death,
    Described,
    Done,
    Kind,
    Need,
    Place,
    Ready,
    StartFailed,
)
from rekindle.run.streams import Streams
from rekindle.run.tickets import Filled, Part, Ticket

_HEARTBEAT = 0.5  # seconds: how long to wait for workers before looking after them
_HELD_BY_CONSUMER = 2  # batches: the one in use and the one before it
_MOST_HELD = 8  # batches: some are kept to look at; who keeps them all would use up the descriptors


class Crew(Protocol):
    """Workers as the engine sees them."""

    size: int

    def send(self, number: int, message: Any, slots: Sequence[slots.Slot] = ()) -> None:
        """Tell a worker something, and let it see the slots that the message is about."""

    def poll(self, timeout: float) -> list[tuple[int, Any]]:
        """What workers said, waiting up to `timeout` seconds for the first word."""

    def close(self) -> None:
        """End all workers."""


class Engine:
    """Carries out orders, `window` batches ahead of the training loop.

    `rows` says that samples may be written straight to their rows; whether they can is learnt from the first
    one. `stream` says that the data set is an iterable one.
    """

    def __init__(
        self,
        crew: Crew,
        pool: slots.SlotPool,
        *,
        seed: int,
        window: int,
        rows: bool,
        whole: bool,
        stream: bool,
        in_order: bool,
        timeout: float,
        bad_samples: BadSamples,
        counters: Counters,
    ) -> None:
        self.crew, self._pool, self._seed = crew, pool, seed
        self._window, self._in_order, self._timeout = window, in_order, timeout
        self._bad_samples, self._counters = bad_samples, counters
        self._dealer = Dealer(crew.size, whole=whole, in_order=in_order)
        self._kind: Kind = "stream" if stream else "rows" if rows else "batch"
        self._layout: Layout | None = None
        self._batch_nbytes = 0  # of packed batches, as far as known
        self._orders: Orders = iter(())
        self._worker_seed: Callable[[int], int] = lambda _: 0
        self._line: deque[Ticket | EndOfEpoch] = deque()  # in the order of delivery
        self._finished: deque[Ticket] = deque()  # in the order of completion
        self._tickets: dict[int, Ticket] = {}  # those with parts at work
        self._cancelled: set[int] = set()
        self._issued = self._parts_sent = 0
        self._largest_batch = 0
        self._streams = Streams(crew.size)
        self._blame = Blame(crew.size)
        self.closed = False

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Carry out these orders from now on; what is under way is dropped.

        `worker_seed` tells what torch would have seeded an epoch's workers with.
        """
        self._drop_line()
        self._worker_seed = worker_seed
        self._orders = orders
        self._dispatch()

    def begin_stream(
        self, orders: Orders, base_seed: int, batch_size: int, made: list[int], turn: int
    ) -> None:
        """The same for an iterable data set, of which worker `n` has made `made[n]` batches already."""
        self._drop_line()
        self._streams.start(base_seed, batch_size, made, turn)
        self._worker_seed = lambda _: base_seed
        for worker in range(self.crew.size):
            self.crew.send(worker, self._streams.beginning(worker))
        self._orders = orders
        self._dispatch()

    def next(self) -> Filled | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        deadline = time.monotonic() + self._timeout if self._timeout else float("inf")
        self._hear(0)
        while True:
            ready = self._take_ready()
            self._dispatch()  # Now: what is taken makes room, and workers go on while the loop is at work.
            if ready is not None:
                return ready
            left = deadline - time.monotonic()
            if left <= 0:
                raise LoaderTimeout(
                    f"DataLoader timed out after {self._timeout} seconds: no worker finished a batch. "
                    "Raise timeout=, or look for what holds the data set up."
                )
            self._hear(min(_HEARTBEAT, left))

    def poll(self) -> Filled | EndOfEpoch | None:
        """What `next` would give, if it is there already."""
        self._hear(0)
        ready = self._take_ready()
        self._dispatch()
        return ready

    def close(self) -> None:
        """End the workers and let go of the memory that no batch is using."""
        if not self.closed:
            self.closed = True
            self.crew.close()
            for ticket in self._tickets.values():
                self._free(ticket)
            self._drop_line()
            self._pool.close()

    # Out: orders become tickets, tickets are dealt to workers.

    def _dispatch(self) -> None:
        while len(self._line) < self._window:
            if self._kind == "stream" and not self._streams.active:
                break
            order = next(self._orders, None)
            if order is None:
                break
            if isinstance(order, EndOfEpoch):
                self._line.append(order)
            else:
                self._line.append(self._issue(order, self._kind))

    def _issue(self, order: BatchOrder, kind: Kind) -> Ticket:
        rows = len(order.indices)
        self._largest_batch = max(self._largest_batch, rows)
        if kind == "rows" and self._layout is not None and rows > self._layout.rows:
            kind = "batch"  # Larger than any before: it does not fit the slots.
        parts = [Part(a, b) for a, b in self._dealer.cut(rows, whole=kind != "rows")]
        ticket = Ticket(self._issued, order, kind, order.indices, order.ids, parts, len(parts))
        self._issued += 1
        if kind == "rows" and self._layout is not None:
            ticket.layout, ticket.slot = self._layout, self._pool.take(self._layout.nbytes)
        elif kind != "rows" and self._batch_nbytes:
            ticket.slot = self._pool.take(self._batch_nbytes)
        self._tickets[ticket.number] = ticket
        for number in range(len(parts)):
            self._send_part(ticket, number)
        return ticket

    def _send_part(self, ticket: Ticket, number: int) -> None:
        part = ticket.parts[number]
        if part.worker < 0:
            if ticket.kind == "stream" and self._in_order:
                part.worker = self._streams.next()
            else:
                able = self._streams.active if ticket.kind == "stream" else range(self.crew.size)
                samples = part.stop - part.start
                part.worker = self._dealer.choose(ticket.order.step, samples, able)
        part.sent = self._parts_sent
        self._parts_sent += 1
        used = () if ticket.slot is None else (ticket.slot,)
        timed = self._counters.costs is not None
        unit = ticket.unit(number, self._seed, self._worker_seed(ticket.order.epoch), timed)
        self.crew.send(part.worker, unit, used)

    # In: what workers say.

    def _hear(self, timeout: float) -> None:
        try:
            for worker, message in self.crew.poll(timeout):
                self._take(worker, message)
        except RekindleError:  # Not of one batch but of them all: nothing can go on after it.
            self.close()
            raise

    def _take(self, worker: int, message: Any) -> None:
        match message:
            case Done():
                self._done(worker, message)
            case Described(ticket, _, spec, asked):
                if ticket not in self._cancelled:
                    self._settle(spec, asked)
            case Need(ticket, part, nbytes):
                self._place(worker, ticket, part, nbytes)
            case Ready():
                self._blame.started(worker)
            case StartFailed(told):
                self.close()
                told.raise_again()
            case Death():
                self._counters.replaced_workers += 1
                self._send_again(worker, message)

    def _settle(self, spec: Spec | None, asked_which_worker: bool) -> None:
        """Decide from the first sample how batches are made; tell everybody."""
        if self._layout is not None or self._kind != "rows":
            return
        if spec is None or (asked_which_worker and not self._dealer.whole):
            self._kind = "rows" if spec is not None else "batch"
            self._dealer.whole = self._dealer.whole or asked_which_worker
            self._start_over()
            return
        layout = Layout(spec, max(self._largest_batch, 1))
        slots.check_room(layout.nbytes, self._window + _HELD_BY_CONSUMER)
        self._layout = layout
        for worker in range(self.crew.size):
            self.crew.send(worker, Arrange(layout))
        for ticket in self._tickets.values():
            if ticket.kind == "rows" and ticket.number not in self._cancelled:
                ticket.layout, ticket.slot = layout, self._pool.take(layout.nbytes)
                for number, part in enumerate(ticket.parts):
                    place = Place(ticket.number, number, ticket.slot.number)
                    self.crew.send(part.worker, place, (ticket.slot,))

    def _start_over(self) -> None:
        """Drop what is under way and issue the same orders anew."""
        line = list(self._line)
        self._drop_line()
        for item in line:
            again = self._issue(item.order, self._kind) if isinstance(item, Ticket) else item
            self._line.append(again)

    def _place(self, worker: int, number: int, part: int, nbytes: int) -> None:
        """Give a finished batch the room that it needs."""
        if number in self._cancelled:
            return
        ticket = self._tickets[number]
        if nbytes > self._batch_nbytes:
            self._batch_nbytes = nbytes + nbytes // 8
            slots.check_room(self._batch_nbytes, self._window + _HELD_BY_CONSUMER)
        if ticket.slot is not None:
            self._pool.give_back(ticket.slot)
        ticket.slot = self._pool.take(self._batch_nbytes)
        self.crew.send(worker, Place(number, part, ticket.slot.number), (ticket.slot,))

    def _done(self, worker: int, done: Done) -> None:
        ticket = self._tickets[done.ticket]
        part = ticket.parts[done.part]
        spent, counters = done.spent, self._counters
        counters.load.add(spent.load_seconds, calls=spent.samples)
        counters.collate.add(spent.collate_seconds, spent.nbytes, spent.samples)
        counters.idle.add(spent.idle_seconds)
        if done.costs and counters.costs is not None:
            counters.costs.add(ticket.ids[part.start : part.stop], done.costs)
        if ticket.kind == "stream":
            self._streams.came_back(worker, done.ended)
            ticket.missing = len(ticket.indices) - spent.samples if not done.errors else 0
        self._dealer.returned(worker, part.stop - part.start, spent.samples, spent.load_seconds)
        part.done = True
        ticket.pending -= 1
        for error in done.errors:
            ticket.errors[error.row] = error
        if ticket.number in self._cancelled:
            if ticket.pending == 0:
                self._forget(ticket)
            return
        if done.mismatch:
            self._make_whole(ticket)
            return
        if done.objects:
            ticket.keep_strings(part, done.objects)
        ticket.sizes, ticket.packed = done.sizes, done.packed
        ticket.ended, ticket.fresh = done.ended, done.fresh
        if ticket.pending == 0:
            self._complete(ticket)

    def _make_whole(self, ticket: Ticket) -> None:
        """Samples do not fit the layout: let the collate function see them all at once."""
        self._line[self._line.index(ticket)] = self._issue(ticket.order, "batch")
        self._cancel(ticket)
        if ticket.pending == 0:
            self._forget(ticket)

    def _complete(self, ticket: Ticket) -> None:
        """All parts are back: the batch is ready, or its bad samples are replaced first."""
        if ticket.errors and self._bad_samples.on_error == "substitute" and -1 not in ticket.errors:
            self._replace_bad(ticket)
            return
        del self._tickets[ticket.number]
        if ticket.ended:
            self._free(ticket)
            self._line.remove(ticket)
        else:
            self._finished.append(ticket)

    def _replace_bad(self, ticket: Ticket) -> None:
        first_new = len(ticket.parts)
        ticket.replace_bad(self._seed)
        for number in range(first_new, len(ticket.parts)):
            self._send_part(ticket, number)

    def _send_again(self, worker: int, death: Death) -> None:
        """Have a dead worker's parts made by its replacement."""
        lost = self._lost_parts(worker)
        self._blame.died(worker, death, (lost[0][0], lost[0][0].parts[lost[0][1]]) if lost else None)
        if self._layout is not None:
            self.crew.send(worker, Arrange(self._layout))
        if self._kind == "stream":
            self.crew.send(worker, self._streams.beginning(worker))
        for ticket, number in lost:
            if ticket.number in self._cancelled:
                ticket.parts[number].done = True
                ticket.pending -= 1
                if ticket.pending == 0:
                    self._forget(ticket)
            else:
                self._send_part(ticket, number)

    def _lost_parts(self, worker: int) -> list[tuple[Ticket, int]]:
        """What a worker was given and has not brought back, in the order in which it would have."""
        lost = [
            (ticket, number)
            for ticket in self._tickets.values()
            for number, part in enumerate(ticket.parts)
            if part.worker == worker and not part.done
        ]
        return sorted(lost, key=lambda pair: pair[0].parts[pair[1]].sent)

    # Delivery.

    def _take_ready(self) -> Filled | EndOfEpoch | None:
        """What is next in line, if it is ready."""
        if not self._line:
            epoch_is_over = self._kind == "stream" and not self._streams.active
            return EndOfEpoch(-1) if epoch_is_over else None
        head = self._line[0]
        if isinstance(head, EndOfEpoch):
            self._line.popleft()
            return head
        if self._in_order:
            if head.number in self._tickets:
                return None
            ticket = head
        else:
            epoch = head.order.epoch
            ready = [ticket for ticket in self._finished if ticket.order.epoch == epoch]
            if not ready:
                return None
            ticket = ready[0]
        self._line.remove(ticket)
        self._finished.remove(ticket)
        return self._deliver(ticket)

    def _deliver(self, ticket: Ticket) -> Filled | EndOfEpoch | None:
        bad = sorted(ticket.errors)
        if bad and (bad[0] < 0 or self._bad_samples.on_error == "raise"):
            self._free(ticket)
            ticket.errors[bad[0]].told.raise_again()
        for found in ticket.bad_samples():
            self._bad_samples.note(found, ticket.order)
        if len(bad) == len(ticket.indices) > 0:
            self._free(ticket)
            return self._take_ready()  # Nothing is left of this batch.
        return ticket.filled(self._memory(ticket))

    def _memory(self, ticket: Ticket) -> Any:
        if ticket.packed is not None:
            self._free(ticket)
            return np.frombuffer(bytearray(ticket.packed), dtype=np.uint8)
        assert ticket.slot is not None
        if self._pool.leased < _MOST_HELD:
            return self._pool.lease(ticket.slot)
        # The training loop keeps its batches: this one gets memory of its own, and the slot goes on.
        used = ticket.layout.nbytes if ticket.layout is not None else self._batch_nbytes
        copy = ticket.slot.array[:used].copy()
        self._free(ticket)
        return copy

    # Dropping.

    def _drop_line(self) -> None:
        for item in self._line:
            if isinstance(item, Ticket):
                self._cancel(item)
        self._line.clear()
        self._finished.clear()
        if not self.closed:
            for worker in range(self.crew.size):
                self.crew.send(worker, Cancel(self._issued))

    def _cancel(self, ticket: Ticket) -> None:
        if ticket.number in self._tickets:
            self._cancelled.add(ticket.number)
        else:
            self._free(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self._cancelled.discard(ticket.number)
        del self._tickets[ticket.number]
        self._free(ticket)

    def _free(self, ticket: Ticket) -> None:
        if ticket.slot is not None:
            self._pool.give_back(ticket.slot)
            ticket.slot = None
