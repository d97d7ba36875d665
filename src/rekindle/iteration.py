"""One pass over a loader: asks the runner for batches and hands them to the training loop."""

from __future__ import annotations

import time
import warnings
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rekindle.choose import EndOfEpoch
from rekindle.errors import WorkerError
from rekindle.run.runner import AnyRunner
from rekindle.run.tickets import Filled, Made
from rekindle.ship import OneAhead, nbytes, pinner, unpack
from rekindle.state import Position

if TYPE_CHECKING:
    from rekindle.loader import DataLoader

_FORGET_EVERY = 64  # batches


@dataclass(slots=True)
class Progress:
    """How far a loader has got: apart from it, because setting an attribute of torch's loader is slow."""

    position: Position = field(default_factory=Position)
    last: Filled | Made | None = None  # the batch handed over last
    unseen_bad: int = 0  # bad samples, the last found, of a batch that is not handed over yet
    handed_over: float | None = None  # when that was, as long as the training loop is at work on it


class EpochIterator:
    """What `iter(loader)` gives."""

    def __init__(
        self,
        loader: DataLoader[Any],
        runner: AnyRunner,
        position: Position,
    ) -> None:
        self._loader, self._runner, self._position = loader, runner, position
        self._progress, self._counters, self._in_order = loader._progress, loader._counters, loader.in_order
        self._pin = pinner(loader.pin_memory, loader.pin_memory_device)
        self._noted = loader._note_reuse if loader.reuse or loader.redundancy else None
        to_device = loader._placement.to_device(loader.seed, self._pin)
        self._ahead = None if to_device is None else OneAhead(runner, to_device)
        self._ended = False
        self._yielded = 0
        self._length_claimed: int | None = loader._IterableDataset_len_called
        # A pass that is dropped halfway takes its workers with it, unless they are to persist.
        self._drop = weakref.finalize(self, _abandon, runner, loader.persistent_workers)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    @property
    def _workers(self) -> list[Any]:
        """The worker processes (or threads), for those who look at torch's iterators this way."""
        crew = getattr(self._runner, "crew", None)
        return list(getattr(crew, "processes", None) or getattr(crew, "threads", []))

    def __next__(self) -> Any:
        progress, counters = self._progress, self._counters
        asked = time.perf_counter()
        if progress.handed_over is not None:
            counters.consume.add(asked - progress.handed_over)
            progress.handed_over = None
        if self._ended:
            raise StopIteration
        ahead = self._ahead
        if self._runner.closed and not (ahead is not None and ahead.holds):
            raise WorkerError(
                "the workers of this pass are gone after an earlier error; start a new pass with iter()"
            )
        if ahead is not None:
            return self._next_on_device(ahead, asked)
        ready = self._runner.next()
        got = time.perf_counter()
        counters.wait.add(got - asked)
        if isinstance(ready, EndOfEpoch):
            self._end()
            raise StopIteration
        self._note(ready)
        if isinstance(ready, Made) and self._pin is None:
            counters.collate.nbytes += nbytes(ready.value) if ready.nbytes is None else ready.nbytes
            if ready.at_once:
                counters.load.add(got - asked, 0, len(ready.order.indices))
            if self._noted is not None:
                self._noted(ready, ready.value)
            progress.handed_over = got
            return ready.value
        batch = unpack(ready)
        if self._noted is not None:
            self._noted(ready, batch)
        if self._pin is not None:
            batch = self._pin(batch)
        progress.handed_over = time.perf_counter()
        counters.ship.add(progress.handed_over - got)
        return batch

    def _next_on_device(self, ahead: OneAhead, asked: float) -> Any:
        """The next batch, on the device; the one after it is put on its way."""
        progress, counters = self._progress, self._counters
        sent = ahead.next()
        got = time.perf_counter()
        counters.wait.add(got - asked)
        if isinstance(sent, EndOfEpoch):
            self._end()
            raise StopIteration
        found = self._loader._bad_samples.found
        known = len(found)
        ahead.look_ahead()
        progress.unseen_bad = len(found) - known
        batch = ahead.receive(sent)
        self._note(sent.ready)
        if self._noted is not None:
            self._noted(sent.ready, unpack(sent.ready))
        progress.handed_over = time.perf_counter()
        counters.ship.add(progress.handed_over - got)
        return batch

    def _note(self, ready: Filled | Made) -> None:
        """Keep account of a batch that is handed over."""
        position, order = self._position, ready.order
        self._counters.batches += 1
        self._counters.samples += len(order.indices) - len(ready.bad)
        self._progress.last, self._progress.position = ready, position
        if self._in_order:
            position.step = order.step + 1
        else:
            position.deliver(order.step)
        if position.sampler is not None and not order.step % _FORGET_EVERY:
            position.sampler.forget_before(position.step)
        if position.stream is not None:
            made = position.stream["made"]
            made[ready.worker] += 1
            position.stream["turn"] = (ready.worker + 1) % len(made)
            self._warn_of_length()

    def _warn_of_length(self) -> None:
        """Warn, as torch does, if an iterable data set gives more than it said."""
        self._yielded += 1
        claimed = self._length_claimed
        if claimed is None or self._yielded <= claimed:
            return
        message = (
            f"Length of IterableDataset {self._loader.dataset} was reported to be {claimed}"
            f"(when accessing len(dataloader)), but {self._yielded} samples have been fetched. "
        )
        if self._loader.num_workers > 0:
            message += (
                "For multiprocessing data-loading, this could be caused by not properly configuring the "
                "IterableDataset replica at each worker."
            )
        warnings.warn(message, stacklevel=4)

    def _end(self) -> None:
        self._ended = True
        self._drop.detach()
        if self._progress.position is self._position:
            self._progress.position = Position(epoch=self._loader._next_epoch)
        self._loader._park(self._runner)

    def _detach(self) -> None:
        """End this pass because another one takes over its workers."""
        self._ended = True
        self._drop.detach()


def _abandon(runner: AnyRunner, persistent: bool) -> None:
    if not persistent:
        runner.close()
