"""One epoch of a loader: asks the runner for batches and yields them to the training loop."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from threading import Thread, get_ident

from rekindle.choose import EndOfEpoch
from rekindle.choose.position import CopyStates, IterablePosition, Position, with_copy
from rekindle.core import compile_later
from rekindle.core.counters import Counters
from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Batch
from rekindle.errors import WorkerError
from rekindle.loader.checkpoint import State
from rekindle.loader.passes import Passes
from rekindle.loader.settings import LoaderSettings
from rekindle.run import Runner
from rekindle.run.idle_runner import IdleRunner
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch
from rekindle.ship import OneAhead, nbytes, pinner, unpack, yielded

_FORGET_EVERY = 64  # batches


@dataclass(slots=True)
class Progress:
    """How far a loader has got: apart from it, because setting an attribute of torch's loader is slow."""

    position: Position = field(default_factory=Position)
    last: SlotBatch | CollatedBatch | None = None  # the batch yielded last
    unseen_bad: int = 0  # bad samples, the last found, of a batch that is not yielded yet
    yielded_at: float | None = None  # when that was, as long as the training loop is at work on it
    has_warned: bool = False  # that the state of a dataset cannot be saved
    has_warned_of_feedback: bool = False  # that nobody learns from it
    # Where a framework asks for batches before the training loop does: those that it has, in order, and the
    # one that the training loop has, with the state behind it.
    read_ahead: deque[SlotBatch | CollatedBatch] | None = None
    shown: SlotBatch | CollatedBatch | None = None
    state_shown: Callable[[], State] | None = None

    @property
    def current(self) -> SlotBatch | CollatedBatch | None:
        """The batch that the training loop has."""
        return self.last if self.shown is None else self.shown


class EpochIterator:
    """What `iter(loader)` gives. `end` is called when the epoch is over.

    A batch is yielded in one step, which has happened or has not: the position moves in the last lines of
    `__next__`. After an interrupt anywhere before them (Ctrl-C, say), what was half done is thrown away, and
    the next call goes on from the position as from a checkpoint, with the runner that `again` gives.
    """

    def __init__(
        self,
        settings: LoaderSettings,
        runner: Runner,
        position: Position,
        progress: Progress,
        end: Callable[[LoaderSettings, Runner], None],
        again: Callable[[Runner], Runner],
        loader: Sized,
        passes: Passes,
        idle: IdleRunner,
    ) -> None:
        self._settings, self._runner, self._position = settings, runner, position
        self._progress, self._end, self._again, self._loader = progress, end, again, loader
        self._counters, self._in_order = settings.counters, settings.in_order
        self._pin = pinner(settings.pin_memory, settings.pin_memory_device) if settings.pin_memory else None
        self._accounting = settings.reuse.accounting if settings.reuse.keeps_account else None
        to_device = settings.device.to_device(settings.seed, self._pin)
        self._to_device = to_device
        self._ahead = None if to_device is None else OneAhead(runner, to_device)
        self._passes, self._idle, self.thread = passes, idle, get_ident()
        self._ended = self._ending = self._closed = False
        self._superseded = False  # by a pass of another thread, where only one can be right
        self._asking = False  # for a batch; if that is so at the start of `__next__`, the last call failed
        self._yielded, self._process = 0, os.getpid()
        self._compile_at = compile_later.first_look(time.perf_counter())
        self._length_claimed: int | None = getattr(loader, "_IterableDataset_len_called", None)
        # An epoch that is dropped halfway takes its workers with it, unless they are to persist.
        self._drop = weakref.finalize(self, _abandon, runner, idle)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __getstate__(self) -> object:
        # As torch's iterators do, in torch's words.
        raise NotImplementedError("{} cannot be pickled", type(self).__name__)

    @property
    def _workers(self) -> Sequence[BaseProcess | Thread]:
        """The worker processes (or threads), for those who look at torch's iterators this way."""
        return list(self._runner.workers)

    @property
    def goes_on(self) -> bool:
        """Whether there may be more batches."""
        return not self._ended

    def __next__(self) -> Batch:
        progress, counters = self._progress, self._counters
        asked = time.perf_counter()
        if progress.yielded_at is not None:
            consume = counters.consume  # Added here, as below: a call a stage would cost more than the rest.
            consume.calls, consume.seconds = consume.calls + 1, consume.seconds + asked - progress.yielded_at
            progress.yielded_at = None
        if asked > self._compile_at:
            self._compile_at = compile_later.look_after(asked)
        if self._ended:
            self._close_if_ending()
            self._check_not_closed()
            raise StopIteration
        if self._asking:
            self._go_back()
        self._asking = True
        ahead = self._ahead
        if self._runner.closed:
            self._check_ours()
            if not (ahead is not None and ahead.holds):
                raise WorkerError(
                    "the workers of this epoch are gone after an earlier error; start a new one with iter()"
                )
        if ahead is not None:
            return self._next_on_device(ahead, asked)
        try:
            ready = self._runner.next()
        except Exception:
            self._check_not_closed()  # by another thread, meanwhile
            raise
        got = time.perf_counter()
        wait = counters.wait
        wait.seconds += got - asked
        if isinstance(ready, EndOfEpoch):
            self._finish()
            raise StopIteration
        wait.calls += 1
        try:
            batch = ready.value if isinstance(ready, CollatedBatch) else unpack(ready)
            if self._accounting is not None:
                self._accounting.note(yielded(ready), batch, self._settings.importance)
            if self._pin is not None:
                batch = self._pin(batch)
        except Exception as error:  # If it is this batch's own, the next call is for the next one.
            self._asking = is_interrupt(error)
            raise
        now = got
        if isinstance(ready, CollatedBatch) and not ready.by_workers and self._pin is None:
            counters.collate.nbytes += nbytes(batch) if ready.nbytes is None else ready.nbytes
            if ready.at_once:
                counters.load.add(got - asked, 0, len(ready.order.indices))
        else:
            now = time.perf_counter()
            ship = counters.ship
            ship.calls, ship.seconds = ship.calls + 1, ship.seconds + now - got
        position = self._position
        if progress.position is not position:
            self._passes.goes_on_after_another()
        moved = self._moved(ready)
        # One step. Python looks for signals at calls and in loops, and there are none from here on.
        position.step, position.ahead, position.iterable, position.copies = moved
        progress.last, progress.position, progress.yielded_at = ready, position, now
        self._asking = False
        return batch

    def _next_on_device(self, ahead: OneAhead, asked: float) -> Batch:
        """The next batch, on the device; the one after it is put on its way."""
        progress, counters = self._progress, self._counters
        try:
            sent = ahead.next()
        except Exception:
            self._check_not_closed()  # As above.
            raise
        got = time.perf_counter()
        counters.wait.add(got - asked, calls=0 if isinstance(sent, EndOfEpoch) else 1)
        if isinstance(sent, EndOfEpoch):
            self._finish()
            raise StopIteration
        found = self._settings.bad_samples.found
        known = len(found)
        ahead.look_ahead()
        unseen_bad = len(found) - known
        batch = ahead.receive(sent)
        if self._accounting is not None:
            self._accounting.note(yielded(sent.ready), unpack(sent.ready), self._settings.importance)
        now = time.perf_counter()
        counters.ship.add(now - got)
        position = self._position
        if progress.position is not position:
            self._passes.goes_on_after_another()
        moved = self._moved(sent.ready)
        # One step, as above.
        position.step, position.ahead, position.iterable, position.copies = moved
        progress.last, progress.position, progress.yielded_at = sent.ready, position, now
        progress.unseen_bad = unseen_bad
        self._asking = False
        return batch

    def _moved(
        self, ready: SlotBatch | CollatedBatch
    ) -> tuple[int, frozenset[int], IterablePosition | None, CopyStates | None]:
        """Count a batch that is about to be yielded; returns what becomes of the position with it."""
        position, order = self._position, ready.order
        self._counters.batches += 1
        self._counters.samples += len(order.indices) - len(ready.bad)
        if position.sampler is not None and not order.step % _FORGET_EVERY:
            position.sampler.forget_before(position.step)
        iterable = position.iterable
        if iterable is not None:
            iterable = iterable.after_a_batch(ready.worker, ready.dataset_state)
            self._warn_of_length()
        copies = position.copies
        if copies is not None and ready.dataset_state is not None:
            copies = with_copy(copies, ready.worker, ready.dataset_state.value)
        if self._settings.importance is not None:
            self._settings.importance.move_to(position.step + len(position.ahead))
        if self._progress.read_ahead is not None:
            self._progress.read_ahead.append(ready)
        step, ahead = position.after_a_batch(order.step, in_order=self._in_order)
        return step, ahead, iterable, copies

    def _go_back(self) -> None:
        """Begin again from the position, if an interrupt of the last call may have lost a batch."""
        if (self._runner if self._ahead is None else self._ahead).steady:
            return
        with self._passes.lock:
            runner = self._again(self._runner)
        self._drop.detach()
        self._runner = runner
        self._ahead = None if self._to_device is None else OneAhead(runner, self._to_device)
        self._drop = weakref.finalize(self, _abandon, runner, self._idle)

    def _check_not_closed(self) -> None:
        if self._superseded:
            raise WorkerError(
                "importance= chooses the samples of one pass by what is reported of it, and another thread "
                "has begun the next pass over this loader. Make a loader for each thread."
            )
        if self._closed:
            batches = self._position.step + len(self._position.ahead)
            raise WorkerError(
                "the loader was closed within this epoch, by close(), the end of its with block or "
                f"load_state_dict(), after {batches} batch{'es' * (batches != 1)}. Start another epoch "
                "with iter(loader)."
            )

    def _check_ours(self) -> None:
        if os.getpid() != self._process:
            raise WorkerError(
                f"this iterator is of process {self._process}, which forked this one ({os.getpid()}): its "
                "workers load batches for that process alone. Here, start an epoch with workers of its own, "
                "with iter(loader)."
            )

    def _warn_of_length(self) -> None:
        """Warn, as torch does, if an iterable dataset gives more than it said."""
        self._yielded += 1
        claimed = self._length_claimed
        if claimed is None or self._yielded <= claimed:
            return
        message = (
            f"Length of IterableDataset {self._settings.dataset} was reported to be {claimed}"
            f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. "
        )
        if self._settings.num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker."
            )
        warnings.warn(message, stacklevel=4)

    def _finish(self) -> None:
        with self._passes.lock:
            self._finish_alone()

    def _finish_alone(self) -> None:
        position, progress, by_threads = self._position, self._progress, self._passes.by_threads
        keeps = self._settings.keeps_datasets and not by_threads
        kept = position.iterable if keeps else None
        following = Position(
            (self._passes.last_epoch if by_threads else position.epoch) + 1,
            iterable=None if kept is None else kept.after_the_end(),
            copies=position.copies if keeps else None,
        )
        # One step, as in `__next__`.
        progress.position = following if progress.position is position else progress.position
        self._ended = self._ending = True
        self._drop.detach()
        if self._superseded:
            self._runner.close()
        else:
            self._end(self._settings, self._runner)
        self._ending = False

    def _close_if_ending(self) -> None:
        """End the workers if an interrupt came before it was decided what becomes of them."""
        if self._ending:
            self._runner.close()
            self._ending = False

    def detach(self) -> None:
        """End this epoch; its workers go on without it."""
        self._ended = True
        self._drop.detach()

    def supersede(self) -> None:
        """End this epoch, as another thread has begun one: who asks for another batch gets an error."""
        self._superseded = self._ended = True

    def close(self) -> None:
        """End this epoch and its workers: who asks for another batch gets an error, unless it had all."""
        self._closed = self._closed or not self._ended  # It may have been closed before.
        self.detach()
        self._runner.close()


def _abandon(runner: Runner, idle: IdleRunner) -> None:
    if idle.runner is not runner:  # It does not persist.
        runner.close()


def count_start(counters: Counters, progress: Progress, asked: float) -> None:
    """Count the time since `iter()` was called; what came before it was work on the last batch."""
    start, consume = counters.start, counters.consume  # Added here, as in `EpochIterator.__next__`.
    if progress.yielded_at is not None:  # The loop has left an epoch early.
        consume.calls, consume.seconds = consume.calls + 1, consume.seconds + asked - progress.yielded_at
        progress.yielded_at = None
    start.calls, start.seconds = start.calls + 1, start.seconds + time.perf_counter() - asked
