"""One pass over a loader: asks the runner for batches and hands them to the training loop."""

from __future__ import annotations

import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from rekindle.choose import EndOfEpoch, SamplerOrders
from rekindle.errors import WorkerError
from rekindle.run.runner import AnyRunner
from rekindle.run.tickets import Filled, Made
from rekindle.ship import BatchInfo, good_rows, pinner, unpack
from rekindle.state import Position

if TYPE_CHECKING:
    from rekindle.loader import DataLoader

Batch_co = TypeVar("Batch_co", covariant=True)


class EpochIterator:
    """What `iter(loader)` gives."""

    def __init__(
        self,
        loader: DataLoader[Any],
        runner: AnyRunner,
        position: Position,
        sampler_orders: SamplerOrders | None,
    ) -> None:
        self._loader, self._runner = loader, runner
        self._position, self._sampler_orders = position, sampler_orders
        self._pin = pinner(loader.pin_memory, loader.pin_memory_device)
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
        loader = self._loader
        counters = loader._counters
        asked = time.perf_counter()
        if loader._handed_over is not None:
            counters.consume.add(asked - loader._handed_over)
            loader._handed_over = None
        if self._ended:
            raise StopIteration
        if self._runner.closed:
            raise WorkerError(
                "the workers of this pass are gone after an earlier error; start a new pass with iter()"
            )
        ready = self._runner.next()
        got = time.perf_counter()
        counters.wait.add(got - asked)
        if isinstance(ready, EndOfEpoch):
            self._end()
            raise StopIteration
        self._note(ready)
        if isinstance(ready, Made) and self._pin is None:
            if ready.at_once:
                counters.load.add(got - asked, 0, len(ready.order.indices))
            loader._handed_over = got
            return ready.value
        batch = unpack(ready)
        if self._pin is not None:
            batch = self._pin(batch)
        loader._handed_over = time.perf_counter()
        counters.ship.add(loader._handed_over - got)
        return batch

    def _note(self, ready: Filled | Made) -> None:
        """Keep account of a batch that is handed over."""
        loader, position, order = self._loader, self._position, ready.order
        loader._counters.batches += 1
        loader._counters.samples += len(order.indices) - len(ready.bad)
        loader._batch = BatchInfo(order, ready.ids, good_rows(ready))
        loader._position = position
        if loader.in_order:
            position.step = order.step + 1
        else:
            position.deliver(order.step)
        if self._sampler_orders is not None:
            position.sampler = self._sampler_orders.resume_after(position.step)
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
        if self._loader._position is self._position:
            self._loader._position = Position(epoch=self._loader._next_epoch)
        self._loader._park(self._runner)

    def _detach(self) -> None:
        """End this pass because another one takes over its workers."""
        self._ended = True
        self._drop.detach()


def _abandon(runner: AnyRunner, persistent: bool) -> None:
    if not persistent:
        runner.close()
