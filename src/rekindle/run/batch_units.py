"""Units of kind "batch" and "stream": whatever the collate function returns, pickled into the slot."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from rekindle.core.samples import Batch, Sample
from rekindle.run import batch_pickle
from rekindle.run.bad_samples import FailedSample, failed_rows
from rekindle.run.dataset_copies import DatasetCopy
from rekindle.run.job import Job
from rekindle.run.messages import SampleError, StartStream, Unit
from rekindle.run.sample_loader import LoadRequest
from rekindle.run.sample_timing import NOT_LOADED
from rekindle.run.stream_reader import StreamReader
from rekindle.run.unit_loader import UnitLoader, request_of
from rekindle.run.unit_queue import UnitQueue

# A batch smaller than this goes through the pipe: cheaper than a slot.
_SMALL = 2048


class BatchUnits:
    """Loads whole batches of a map-style dataset."""

    def __init__(self, job: Job, queue: UnitQueue, loader: UnitLoader, copy: DatasetCopy) -> None:
        self._job, self._queue, self._loader, self._copy = job, queue, loader, copy
        # By batch: samples that wait for substitutes of those that failed. They are not asked for again.
        self._kept: dict[int, list[Sample]] = {}

    def run(self, unit: Unit) -> None:
        """Load and collate a unit, pack the batch and report it as done."""
        self._copy.check()
        job, loader = self._job, self._loader
        request = request_of(unit)
        errors: tuple[SampleError, ...] = ()
        kept = self._kept.pop(unit.batch, None)
        samples = self._load_together(request) if kept is None else None
        if samples is None:
            loaded = loader.load(unit, request) if kept is None else self._substituted(unit, request, kept)
            errors = loader.errors(loaded, unit)
            samples = [sample for sample in loaded if type(sample) is not FailedSample]
            if errors and job.substitutes and job.asks_once:
                self._kept = {number: one for number, one in self._kept.items() if self._queue.wants(number)}
                self._kept[unit.batch] = loaded
        if errors and not (job.skip_failures and job.batched and samples):
            self._queue.done(unit, errors=errors)
            return
        argument = samples if job.batched else samples[0]
        batch = loader.samples.call(job.collate_fn, request, argument)
        loaded_samples, state = len(unit.indices) - len(errors), self._copy.news()
        send_batch(self._queue, unit, batch, loaded_samples, errors, dataset_state=state)

    def _substituted(self, unit: Unit, request: LoadRequest, kept: list[Sample]) -> list[Sample]:
        """Samples, of which only those that failed are loaded: what the request names in their rows."""
        loader, samples = self._loader.samples, [*kept]
        costs, fresh, has_cache = [NOT_LOADED] * len(kept), [False] * len(kept), False
        for row in failed_rows(kept):
            (samples[row],) = self._loader.load(unit, request.rows(slice(row, row + 1)))
            if unit.timed:
                costs[row] = loader.costs.pop()
            if loader.fresh:
                has_cache, fresh[row] = True, loader.fresh.pop()
        loader.costs, loader.fresh = costs if unit.timed else [], fresh if has_cache else []
        return samples

    def _load_together(self, request: LoadRequest) -> list[Sample] | None:
        """What `__getitems__` returns; None if there is none, or if it failed and failures are allowed."""
        if not (self._job.batched and self._job.together):
            return None
        try:
            return self._loader.samples.load_together(request)
        except Exception:  # Found again, with its row, when samples are loaded one by one.
            if self._job.stop_at_failure:
                raise
            return None


class StreamUnits:
    """Loads batches of an iterable dataset: the next samples of the worker's own iterator."""

    def __init__(
        self, job: Job, queue: UnitQueue, loader: UnitLoader, seed_worker: Callable[[int], None]
    ) -> None:
        self._job, self._queue, self._loader = job, queue, loader
        self._seed_worker = seed_worker
        self._reader = StreamReader(job)
        self._error: Exception | None = None  # raised by the dataset when the pass started

    def start(self, message: StartStream) -> None:
        """Start a pass over the dataset."""
        self._error = None
        try:
            self._reader.start(
                message.state, message.batch_size, lambda: self._seed_worker(message.base_seed)
            )
        except Exception as error:
            self._error = error

    def run(self, unit: Unit) -> None:
        """Collate the next samples, pack the batch and report it as done."""
        if self._error is not None:
            error, self._error, self._reader = self._error, None, StreamReader(self._job)
            raise error
        reader = self._reader
        started = time.perf_counter()
        samples, fresh = reader.take(len(unit.indices))
        self._loader.samples.seconds += time.perf_counter() - started
        reader.used()
        short = len(samples) < len(unit.indices)
        if not samples or (short and self._job.drop_last):
            self._queue.done(unit, ended=True)
            return
        batch = self._job.collate(samples)
        send_batch(self._queue, unit, batch, len(samples), fresh=fresh, dataset_state=reader.state())


def send_batch(
    queue: UnitQueue,
    unit: Unit,
    batch: Batch,
    samples: int,
    errors: tuple[SampleError, ...] = (),
    fresh: list[bool] | None = None,
    dataset_state: bytes | str | None = None,
) -> None:
    """Pack a batch into the unit's slot, or into the message if it is small, and report the unit as done."""
    started = time.perf_counter()
    sizes, packed = pack(queue, unit, batch_pickle.encode(batch))
    queue.collate_seconds += time.perf_counter() - started
    queue.done(
        unit,
        samples,
        sizes=sizes,
        packed=packed,
        errors=errors,
        fresh=fresh,
        dataset_state=dataset_state,
    )


def pack(queue: UnitQueue, unit: Unit, encoded: batch_pickle.Encoded) -> tuple[list[int], bytes | None]:
    """Pack what goes to the main process; returns its sizes, and its bytes where they need no slot."""
    nbytes = queue.nbytes = encoded.nbytes
    if nbytes > _SMALL:
        return encoded.pack(queue.memory(unit, nbytes)), None
    memory = np.empty(nbytes, dtype=np.uint8)
    return encoded.pack(memory), memory.tobytes()
