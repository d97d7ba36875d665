"""Loading without workers: each batch is made in the training loop's own thread when it is asked for."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from rekindle.choose import BatchOrder, EndOfEpoch, Orders
from rekindle.counters import Counters
from rekindle.run import layout
from rekindle.run.bad_samples import BadSample, BadSamples, substitute
from rekindle.run.load import Failure, SampleLoader, Wanted, generators_kept, is_native
from rekindle.run.tickets import Made
from rekindle.run.worker import Job


class Inline:
    """Carries out orders one by one; the same batches as any number of workers makes."""

    def __init__(
        self, job: Job, *, seed: int, rows: bool, bad_samples: BadSamples, counters: Counters
    ) -> None:
        self._job, self._seed = job, seed
        self._bad_samples, self._counters = bad_samples, counters
        self._loader = SampleLoader(job.dataset, alone=generators_kept)
        self._rows = rows
        self._layout: layout.Layout | None = None
        # Tensors held in memory are gathered for a whole batch at once.
        self._tensors = job.dataset.tensors if rows and type(job.dataset) is TensorDataset else None
        self._native = layout.describe_native(job.dataset) if rows and is_native(job.dataset) else None
        self._orders: Orders = iter(())
        self.closed = False

    def begin(self, orders: Orders) -> None:
        """Carry out these orders from now on."""
        self._orders = orders

    def next(self) -> Made | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        while True:
            order = next(self._orders)
            if isinstance(order, EndOfEpoch):
                return order
            started = time.perf_counter()
            self._loader.seconds = 0.0
            made = self._make(order)
            took = time.perf_counter() - started
            self._counters.load.add(self._loader.seconds, calls=len(order.indices))
            self._counters.collate.add(took - self._loader.seconds, calls=len(order.indices))
            if made is not None:
                return made

    def close(self) -> None:
        """Nothing runs in between: there is nothing to end."""
        self.closed = True

    def _make(self, order: BatchOrder) -> Made | None:
        """A batch; None if nothing is left of it."""
        if self._tensors is not None and order.ids.tolist() == order.indices:
            return self._gather(order)
        if self._native is not None:
            return self._fill(order, self._native)
        job, loader = self._job, self._loader
        wanted = self._wanted(order, order.indices, order.ids, order.generations)
        if job.batched and job.stop_at_failure and getattr(job.dataset, "__getitems__", None):
            return Made(order, order.ids, self._collate(wanted, loader.load_together(wanted)))
        samples = loader.load(wanted, stop_at_failure=job.stop_at_failure)
        bad = [row for row, sample in enumerate(samples) if type(sample) is Failure]
        if not bad:
            return Made(order, order.ids, self._collate(wanted, samples))
        ids, bad = self._deal_with(bad, order, samples)
        good = [sample for sample in samples if type(sample) is not Failure]
        return Made(order, ids, self._collate(wanted, good), bad) if good else None

    def _gather(self, order: BatchOrder) -> Made:
        started = time.perf_counter()
        rows = torch.from_numpy(np.ascontiguousarray(order.ids))
        batch = [tensor.index_select(0, rows) for tensor in self._tensors or ()]
        self._loader.seconds += time.perf_counter() - started
        return Made(order, order.ids, batch)

    def _fill(self, order: BatchOrder, spec: layout.Branch) -> Made | None:
        """A batch whose images a native data set writes where they belong."""
        count = len(order.indices)
        if self._layout is None or self._layout.rows < count:
            self._layout = layout.Layout(spec, count)
        leaves: list[Any] = self._layout.tensors(np.empty(self._layout.nbytes, dtype=np.uint8), count)
        images = leaves[0].numpy()
        wanted = self._wanted(order, order.indices, order.ids, order.generations)
        labels = self._loader.load(wanted, stop_at_failure=self._job.stop_at_failure, into=images)
        bad = [row for row, label in enumerate(labels) if type(label) is Failure]
        ids = order.ids
        if bad:
            ids, bad = self._deal_with(bad, order, labels, images)
            rows = torch.from_numpy(np.delete(np.arange(count), bad))
            leaves = [leaf.index_select(0, rows) for leaf in leaves]
            labels = [label for label in labels if type(label) is not Failure]
        columns = layout.columns(labels, spec.parts[1])
        for leaf, column, target in zip(self._layout.leaves[1:], columns, leaves[1:], strict=True):
            layout.write(leaf, column, target)
        return Made(order, ids, layout.assemble(spec, leaves), bad) if labels else None

    def _wanted(
        self,
        order: BatchOrder,
        indices: list[Any],
        ids: NDArray[np.int64],
        generations: NDArray[np.int64],
    ) -> Wanted:
        return Wanted(self._seed, order.epoch, order.step, indices, ids, generations)

    # Bad samples.

    def _deal_with(
        self,
        failed: list[int],
        order: BatchOrder,
        samples: list[Any],
        images: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int64], list[int]]:
        """Raise, replace in `samples` or leave failures; returns the ids and the rows that stay bad."""
        on_error = self._bad_samples.on_error
        if on_error == "raise":
            error = samples[failed[0]].error
            error.add_note(f"rekindle: while loading sample {order.indices[failed[0]]!r}")
            raise error
        found: list[BadSample] = []
        ids = order.ids.copy()
        for row in failed:
            attempt = 0
            while type(samples[row]) is Failure:
                reason = traceback.format_exception_only(samples[row].error)[-1].strip()
                found.append(BadSample(order.epoch, int(ids[row]), reason))
                if on_error == "skip":
                    break
                samples[row], ids[row] = self._stand_in(order, row, attempt, images)
                attempt += 1
        for bad in found:
            self._bad_samples.note(bad, order)
        return ids, failed if on_error == "skip" else []

    def _stand_in(
        self, order: BatchOrder, row: int, attempt: int, images: NDArray[Any] | None
    ) -> tuple[Any, int]:
        """What another sample gives in a bad one's place, and its id."""
        index, id_ = substitute(self._seed, order, int(order.ids[row]), attempt)
        generations = order.generations[row : row + 1]
        wanted = self._wanted(order, [index], np.array([id_]), generations)
        into = None if images is None else images[row : row + 1]
        return self._loader.load(wanted, stop_at_failure=False, into=into)[0], id_

    # Samples to a batch.

    def _collate(self, wanted: Wanted, samples: Any) -> Any:
        if self._rows:
            try:
                return self._write(samples)
            except layout.MismatchError:
                pass
        argument = samples if self._job.batched else samples[0]
        return self._loader.call(self._job.collate_fn, wanted, argument)

    def _write(self, samples: list[Any]) -> Any:
        """The batch, each sample written to its row."""
        if self._layout is None or self._layout.rows < len(samples):
            spec = layout.describe(samples[0])
            if spec is None:
                self._rows = False
                raise layout.MismatchError
            self._layout = layout.Layout(spec, len(samples))
        spec = self._layout.spec
        made = layout.columns(samples, spec)
        memory = np.empty(self._layout.nbytes, dtype=np.uint8)
        leaves: list[Any] = self._layout.tensors(memory, len(samples))
        for number, (leaf, column) in enumerate(zip(self._layout.leaves, made, strict=True)):
            if leaves[number] is None:
                leaves[number] = layout.check_objects(leaf, column)
            else:
                layout.write(leaf, column, leaves[number])
        return layout.assemble(spec, leaves)
