"""What a worker does, be it a process or a thread: take a unit, load it, put it into its slot, say so."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.reuse.echo_stream import EchoStream, take
from rekindle.reuse.reused import Reused
from rekindle.run import codec, layout
from rekindle.run.failure import Failure
from rekindle.run.load import DRAW_NOTHING, SampleLoader, Wanted, rows_of
from rekindle.run.messages import (
    Arrange,
    Begin,
    Cancel,
    Described,
    Done,
    Forget,
    Need,
    Place,
    SampleError,
    Spent,
    Unit,
)
from rekindle.run.native import is_native
from rekindle.run.sample_costs import Cost
from rekindle.run.told import tell

# A batch smaller than this goes through the pipe: cheaper than a slot.
_SMALL = 2048


@dataclass(frozen=True)
class Job:
    """All that a worker has to know about the loader. `batched` is false for `batch_size=None`."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool
    drop_last: bool
    stop_at_failure: bool
    skip_failures: bool
    workers: int
    worker_init_fn: Callable[[int], None] | None
    reused: Reused | None = None

    @property
    def native(self) -> bool:
        """Whether the data set writes its samples straight into the batch."""
        return is_native(self.dataset) and (self.reused is None or self.reused.native)

    @property
    def together(self) -> bool:
        """Whether the data set has a way of its own to load a whole batch."""
        return self.reused is None and bool(getattr(self.dataset, "__getitems__", None))

    @property
    def read_from(self) -> Any:
        """The data set that samples are read from in the end: what `get_worker_info().dataset` is."""
        if isinstance(self.dataset, EchoStream):
            return self.dataset.dataset
        return self.dataset if self.reused is None else self.reused.cut.read_from

    @property
    def draws(self) -> bool:
        """Whether the data set may draw from the global generators."""
        foreign = self.reused is not None and not self.reused.native
        return foreign or not getattr(self.dataset, "draws_nothing", False)


class Channel(Protocol):
    """A worker's end of the line to the engine."""

    slots: dict[int, NDArray[np.uint8]]

    def receive(self) -> Any:
        """The next message, waiting for it; None when there will be no more."""

    def waiting(self) -> bool:
        """Whether a message is there already."""

    def send(self, message: Any) -> None:
        """Tell the engine."""


class Worker:
    """One worker; `serve` runs until the engine closes the line."""

    def __init__(
        self,
        job: Job,
        number: int,
        channel: Channel,
        loader: SampleLoader,
        asked_which_worker: Callable[[], bool] = lambda: False,
        introduce: Callable[[int], None] = lambda _: None,
        worker_seed: int = 0,
    ) -> None:
        self._job, self._number, self._channel, self._loader = job, number, channel, loader
        self._asked_which_worker = asked_which_worker
        self._introduce, self._worker_seed = introduce, worker_seed
        self._inbox: deque[Unit] = deque()
        self._placed: dict[tuple[int, int], int] = {}
        self._cancelled_before = 0
        self._layout: layout.Layout | None = None
        self._rows: dict[int, list[torch.Tensor | None]] = {}
        self._native = layout.describe_native(job.dataset) if job.native else None
        self._will_need: Callable[[list[Any]], None] | None = getattr(job.dataset, "will_need", None)
        self._iterator: Iterator[Any] = iter(())
        self._stream_error: Exception | None = None
        self._idle = self._collate = 0.0
        self._nbytes = 0

    def serve(self) -> None:
        """Carry out units until there are no more."""
        while self._fill_inbox():
            unit = self._inbox.popleft()
            if unit.ticket < self._cancelled_before:
                self._send_done(unit, cancelled=True)
                continue
            if unit.worker_seed != self._worker_seed:  # A new epoch, for which torch would have started anew.
                self._worker_seed = unit.worker_seed
                self._introduce(unit.worker_seed)
            try:
                _WORK[unit.kind](self, unit)
            except _CancelledError:
                self._send_done(unit, cancelled=True)
            except Exception as error:
                self._send_done(unit, errors=(self._sample_error(error, -1, unit),))

    # Messages.

    def _fill_inbox(self) -> bool:
        """Read all messages that are there; wait for one if there is nothing to do."""
        while self._channel.waiting() or not self._inbox:
            if not self._read():
                return False
        return True

    def _read(self) -> bool:
        started = time.perf_counter()
        message = self._channel.receive()
        self._idle += time.perf_counter() - started
        match message:
            case None:
                return False
            case Unit():
                self._inbox.append(message)
                if self._will_need is not None:
                    self._announce(self._will_need, message)
            case Place(ticket, part, slot):
                self._placed[ticket, part] = slot
            case Arrange(arrangement):
                self._layout = arrangement
                self._rows.clear()
            case Cancel(before):
                self._cancelled_before = max(before, self._cancelled_before)
            case Forget(slots):
                for slot in slots:
                    self._rows.pop(slot, None)
                    self._channel.slots.pop(slot, None)
            case Begin(base_seed, skip, batch_size):
                self._start_stream(base_seed, skip, batch_size)
        return True

    def _announce(self, will_need: Callable[[list[Any]], None], unit: Unit) -> None:
        """Let the data set start to fetch what the plan asks for next."""
        if unit.kind != "stream" and unit.ticket >= self._cancelled_before:
            with contextlib.suppress(Exception):  # What is wrong shows when the samples are made.
                will_need(unit.indices)

    def _slot(self, unit: Unit) -> int:
        """The unit's slot, which the engine may still have to choose."""
        if unit.slot is not None:
            return unit.slot
        while (unit.ticket, unit.part) not in self._placed:
            if unit.ticket < self._cancelled_before or not self._read():
                raise _CancelledError
        return self._placed.pop((unit.ticket, unit.part))

    def _send_done(self, unit: Unit, samples: int = 0, **result: Any) -> None:
        spent = Spent(samples, self._loader.seconds, self._collate, self._idle, self._nbytes)
        self._loader.seconds = self._collate = self._idle = 0.0
        self._nbytes = 0
        costs = tuple(self._loader.costs)
        if unit.timed and not costs and samples:  # Made all at once: everyone has the same share of it.
            costs = (Cost(spent.load_seconds / samples, -1),) * len(unit.indices)
        self._loader.costs.clear()
        self._channel.send(Done(unit.ticket, unit.part, spent, costs=costs, **result))

    # Rows: every sample straight to its place.

    def _do_rows(self, unit: Unit) -> None:
        if self._native is not None:
            self._do_native_rows(unit, self._native)
            return
        job, wanted = self._job, _wanted(unit)
        if self._layout is None and unit.slot is None:
            # Tell what the first sample looks like while the others are made.
            samples = self._load(_cut(wanted, slice(0, 1)), unit)
            described = self._describe(unit, samples)
            if described or not job.stop_at_failure:
                samples += self._load(_cut(wanted, slice(1, None)), unit)
                described = described or self._describe(unit, samples)
        else:
            samples = self._load(wanted, unit)
            described = True
        errors = self._errors(samples, unit)
        if not described or (errors and job.stop_at_failure):
            self._send_done(unit, errors=errors)
            return
        slot = self._slot(unit)
        started = time.perf_counter()
        objects, mismatch = None, False
        try:
            objects = self._write_rows(samples, unit.start, slot)
        except layout.MismatchError:
            mismatch = True
        self._collate += time.perf_counter() - started
        good = len(samples) - len(errors)
        self._send_done(unit, good, objects=objects, errors=errors, mismatch=mismatch)

    def _do_native_rows(self, unit: Unit, spec: layout.Branch) -> None:
        """Let the data set write the images where they belong; only the labels come by hand."""
        if self._layout is None and unit.slot is None:
            self._channel.send(Described(unit.ticket, unit.part, spec, asked_which_worker=False))
        images, *label_rows = self._tensors(self._slot(unit))
        assert images is not None
        rows = slice(unit.start, unit.start + len(unit.indices))
        labels = self._load(_wanted(unit), unit, images[rows].numpy())
        errors = self._errors(labels, unit)
        if errors and self._job.stop_at_failure:
            self._send_done(unit, errors=errors)
            return
        started = time.perf_counter()
        self._nbytes += images[rows].nbytes
        objects = self._write_columns(labels, unit.start, spec.parts[1], label_rows)
        self._collate += time.perf_counter() - started
        self._send_done(unit, len(labels) - len(errors), objects=objects, errors=errors)

    def _load(self, wanted: Wanted, unit: Unit, into: NDArray[Any] | None = None) -> list[Any]:
        return self._loader.load(
            wanted,
            stop_at_failure=self._job.stop_at_failure,
            careful=unit.careful,
            timed=unit.timed,
            into=into,
        )

    def _describe(self, unit: Unit, samples: list[Any]) -> bool:
        """Tell the engine what samples look like; false if none could be made yet."""
        for sample in samples:
            if type(sample) is not Failure:
                spec = layout.describe(sample)
                asked = self._asked_which_worker()
                self._channel.send(Described(unit.ticket, unit.part, spec, asked))
                return True
        return False

    def _tensors(self, slot: int) -> list[torch.Tensor | None]:
        """The leaves of the batch in a slot."""
        assert self._layout is not None
        if slot not in self._rows:
            memory = self._channel.slots[slot]
            self._rows[slot] = self._layout.tensors(memory, self._layout.rows)
        return self._rows[slot]

    def _write_rows(self, samples: list[Any], start: int, slot: int) -> list[list[Any]]:
        """Write what did not fail; returns the columns of strings."""
        tensors = self._tensors(slot)
        assert self._layout is not None
        return self._write_columns(samples, start, self._layout.spec, tensors)

    def _write_columns(
        self, samples: list[Any], start: int, spec: layout.Spec, tensors: list[torch.Tensor | None]
    ) -> list[list[Any]]:
        objects: list[list[Any]] = []
        leaves = layout.leaves(spec)
        for begin, end in _runs_of_good(samples):
            made = layout.columns(samples[begin:end], spec)
            strings = []
            for leaf, column, tensor in zip(leaves, made, tensors, strict=True):
                if tensor is None:
                    strings.append(layout.check_objects(leaf, column))
                    continue
                rows = tensor[start + begin : start + end]
                layout.write(leaf, column, rows)
                self._nbytes += rows.nbytes
            objects = [a + b for a, b in zip(objects, strings, strict=True)] if objects else strings
        return objects

    # Batches: whatever the collate function makes of the samples.

    def _do_batch(self, unit: Unit) -> None:
        job, loader = self._job, self._loader
        wanted = _wanted(unit)
        errors: tuple[SampleError, ...] = ()
        if not job.batched:
            made = loader.load(wanted, stop_at_failure=True, careful=unit.careful, timed=unit.timed)
            errors, samples = self._errors(made, unit), made[0]
        elif (samples := self._load_together(wanted)) is None:
            made = self._load(wanted, unit)
            errors = self._errors(made, unit)
            samples = [sample for sample in made if type(sample) is not Failure]
        if errors and not (job.skip_failures and job.batched and samples):
            self._send_done(unit, errors=errors)
            return
        batch = loader.call(job.collate_fn, wanted, samples)
        self._ship(unit, batch, len(unit.indices) - len(errors), errors)

    def _load_together(self, wanted: Wanted) -> Any:
        """What `__getitems__` gives; None if there is none, or if it failed and failures are passed over."""
        if not self._job.together:
            return None
        try:
            return self._loader.load_together(wanted)
        except Exception:
            if self._job.stop_at_failure:
                raise
            return None

    def _ship(
        self,
        unit: Unit,
        batch: Any,
        samples: int,
        errors: tuple[SampleError, ...] = (),
        fresh: list[bool] | None = None,
    ) -> None:
        started = time.perf_counter()
        encoded = codec.encode(batch)
        nbytes = self._nbytes = encoded.nbytes
        if nbytes <= _SMALL:
            memory = np.empty(nbytes, dtype=np.uint8)
            result = {"sizes": encoded.pack(memory), "packed": memory.tobytes()}
        else:
            if unit.slot is None or self._channel.slots[unit.slot].nbytes < nbytes:
                self._channel.send(Need(unit.ticket, unit.part, nbytes))
                unit = unit._replace(slot=None)
            result = {"sizes": encoded.pack(self._channel.slots[self._slot(unit)])}
        self._collate += time.perf_counter() - started
        self._send_done(unit, samples, errors=errors, fresh=fresh, **result)

    # Streams: an iterable data set decides itself what is next.

    def _start_stream(self, base_seed: int, skip: int, batch_size: int) -> None:
        self._worker_seed = base_seed
        self._introduce(base_seed)
        try:
            self._iterator = iter(self._job.dataset)
            pass_over(self._iterator, skip, batch_size, self._job)
        except Exception as error:
            self._stream_error = error

    def _do_stream(self, unit: Unit) -> None:
        if self._stream_error is not None:
            error, self._stream_error, self._iterator = self._stream_error, None, iter(())
            raise error
        started = time.perf_counter()
        samples, fresh = take(self._iterator, len(unit.indices))
        self._loader.seconds += time.perf_counter() - started
        short = len(samples) < len(unit.indices)
        if not samples or (short and self._job.drop_last):
            self._send_done(unit, ended=True)
            return
        batch = self._job.collate_fn(samples if self._job.batched else samples[0])
        self._ship(unit, batch, len(samples), fresh=fresh)

    # Errors.

    def _errors(self, samples: list[Any], unit: Unit) -> tuple[SampleError, ...]:
        return tuple(
            self._sample_error(sample.error, unit.start + row, unit)
            for row, sample in enumerate(samples)
            if type(sample) is Failure
        )

    def _sample_error(self, error: Exception, row: int, unit: Unit) -> SampleError:
        where = f"in DataLoader worker process {self._number}"
        if row >= 0:
            where += f", at sample {unit.indices[row - unit.start]!r}"
        return SampleError(row, tell(error, where))


def pass_over(iterator: Iterator[Any], batches: int, batch_size: int, job: Job) -> None:
    """Go through batches that were made before; a collate function that may draw is run for them, too."""
    for _ in range(batches):
        samples, _ = take(iterator, batch_size)
        if samples and job.collate_fn not in DRAW_NOTHING:
            job.collate_fn(samples if job.batched else samples[0])


class _CancelledError(Exception):
    """Nobody waits for this unit any more."""


_WORK: dict[str, Callable[[Worker, Unit], None]] = {
    "rows": Worker._do_rows,
    "batch": Worker._do_batch,
    "stream": Worker._do_stream,
}


def _wanted(unit: Unit) -> Wanted:
    ids = unit.indices if unit.ids is None else unit.ids
    return Wanted(unit.seed, unit.epoch, unit.step, unit.indices, ids, unit.generations, unit.turns)


def _cut(wanted: Wanted, rows: slice) -> Wanted:
    return Wanted(
        wanted.seed,
        wanted.epoch,
        wanted.step,
        wanted.indices[rows],
        wanted.ids[rows],
        rows_of(wanted.generations, rows),
        rows_of(wanted.turns, rows),
    )


def _runs_of_good(samples: list[Any]) -> list[tuple[int, int]]:
    """The stretches of samples that did not fail, as (begin, end)."""
    bad = [row for row, sample in enumerate(samples) if type(sample) is Failure]
    edges = [-1, *bad, len(samples)]
    return [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]
