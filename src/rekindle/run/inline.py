"""Loading without workers: each batch is made in the training loop's own thread when it is asked for."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from rekindle import global_random
from rekindle.choose import BatchOrder, EndOfEpoch, Orders
from rekindle.counters import Counters
from rekindle.global_random import STREAMS
from rekindle.run import layout
from rekindle.run.bad_samples import BadSample, BadSamples, substitute
from rekindle.run.failure import Failure
from rekindle.run.load import Wanted, generators_kept, rows_of
from rekindle.run.reusing import sample_loader
from rekindle.run.sample_costs import Cost
from rekindle.run.tickets import Made
from rekindle.run.worker import Job


class Inline:
    """Carries out orders one by one; the same batches as any number of workers makes."""

    def __init__(
        self, job: Job, *, seed: int, rows: bool, bad_samples: BadSamples, counters: Counters
    ) -> None:
        self._job, self._seed = job, seed
        self._bad_samples, self._counters = bad_samples, counters
        self._loader = sample_loader(job.dataset, job.reused, alone=generators_kept, draws=job.draws)
        dataset: Any = job.dataset
        self._together = job.batched and job.together
        self._fetch = _fetcher(job, self._together)
        # Tensors held in memory are gathered for a whole batch at once.
        self._tensors = (
            dataset.tensors if rows and type(dataset) is TensorDataset and not job.reused else None
        )
        self._row_nbytes = sum(tensor[:1].nbytes for tensor in self._tensors or ())
        self._native = layout.describe_native(dataset) if rows and job.native else None
        self._will_need: Callable[[list[Any]], None] | None = getattr(dataset, "will_need", None)
        self._orders: Orders = iter(())
        self.closed = False

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Carry out these orders from now on."""
        self._orders = orders

    def next(self) -> Made | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        while True:
            order = next(self._orders)
            if isinstance(order, EndOfEpoch):
                return order
            if self._will_need is not None:
                self._announce(self._will_need, order)
            timed = self._counters.costs is not None
            made = (None if timed else self._make_at_once(order)) or self._make_in_parts(order)
            if made is not None:
                return made

    def _announce(self, will_need: Callable[[list[Any]], None], order: BatchOrder) -> None:
        """Let the data set start to fetch this batch and, where the plan tells it, the one after it."""
        plan, after = order.plan, order.step + 1
        coming = [] if plan is None or after >= plan.steps else plan.ids[plan.rows(after)].tolist()
        with contextlib.suppress(Exception):  # What is wrong shows when the samples are made.
            will_need(order.indices + coming)

    def poll(self) -> None:
        """Nothing is ever ready before it is asked for."""

    def _make_at_once(self, order: BatchOrder) -> Made | None:
        """A batch the quick way, with nothing around the user's code; None if that does not do."""
        if self._tensors is not None and order.plain and order.ids.min(initial=0) >= 0:
            rows = torch.from_numpy(np.ascontiguousarray(order.ids))
            gathered = [tensor.index_select(0, rows) for tensor in self._tensors]
            nbytes = len(order.indices) * self._row_nbytes
            return Made(order, order.ids, gathered, at_once=True, nbytes=nbytes)
        if self._native is not None or self._job.reused is not None or not self._loader.quiet:
            return None
        kept, marks = [stream.save() for stream in STREAMS], global_random.marks()
        try:
            batch = self._fetch(order.indices)
        except Exception:  # Raised again, with the sample's index, by the careful way.
            batch = None
        if batch is None or global_random.marks() != marks:
            for stream, state in zip(STREAMS, kept, strict=True):
                stream.restore(state)
            return None
        return Made(order, order.ids, batch, at_once=True)

    def _make_in_parts(self, order: BatchOrder) -> Made | None:
        started = time.perf_counter()
        self._loader.seconds = 0.0
        made = self._make(order)
        took = time.perf_counter() - started
        self._note_costs(order)
        self._counters.load.add(self._loader.seconds, 0, len(order.indices))
        self._counters.collate.add(took - self._loader.seconds, 0, len(order.indices))
        return made

    def _note_costs(self, order: BatchOrder) -> None:
        """Pass on what each sample took, if that is wanted; the same share each, if made all at once."""
        noted, costs = self._counters.costs, self._loader.costs
        if noted is not None:
            shared = [Cost(self._loader.seconds / max(1, len(order.ids)), -1)] * len(order.ids)
            noted.add(order.ids, list(costs) or shared)
        costs.clear()

    def close(self) -> None:
        """Nothing runs in between: there is nothing to end."""
        self.closed = True

    def _make(self, order: BatchOrder) -> Made | None:
        """A batch; None if nothing is left of it."""
        job, loader = self._job, self._loader
        wanted = Wanted(
            self._seed, order.epoch, order.step, order.indices, order.ids, order.generations, order.turns
        )
        if self._native is not None:
            return self._fill(order, wanted, self._native)
        if self._together:
            try:
                return Made(order, order.ids, self._collate(wanted, loader.load_together(wanted)))
            except Exception:
                if job.stop_at_failure:
                    raise
        timed = self._counters.costs is not None
        samples = loader.load(wanted, stop_at_failure=job.stop_at_failure, timed=timed)
        bad = [row for row, sample in enumerate(samples) if type(sample) is Failure]
        if not bad:
            return Made(order, order.ids, self._collate(wanted, samples))
        ids, bad = self._deal_with(bad, order, samples)
        good = [sample for sample in samples if type(sample) is not Failure]
        return Made(order, ids, self._collate(wanted, good), bad) if good else None

    def _fill(self, order: BatchOrder, wanted: Wanted, spec: layout.Branch) -> Made | None:
        """A batch whose images a native data set writes where they belong."""
        count = len(order.indices)
        plan = layout.Layout(spec, count)
        leaves: list[Any] = plan.tensors(np.empty(plan.nbytes, dtype=np.uint8), count)
        images = leaves[0].numpy()
        timed = self._counters.costs is not None
        labels = self._loader.load(
            wanted, stop_at_failure=self._job.stop_at_failure, timed=timed, into=images
        )
        bad = [row for row, label in enumerate(labels) if type(label) is Failure]
        ids = order.ids
        if bad:
            ids, bad = self._deal_with(bad, order, labels, images)
            rows = torch.from_numpy(np.delete(np.arange(count), bad))
            leaves = [leaf.index_select(0, rows) for leaf in leaves]
            labels = [label for label in labels if type(label) is not Failure]
        columns = layout.columns(labels, spec.parts[1])
        for leaf, column, target in zip(plan.leaves[1:], columns, leaves[1:], strict=True):
            layout.write(leaf, column, target)
        return Made(order, ids, layout.assemble(spec, leaves), bad) if labels else None

    def _collate(self, wanted: Wanted, samples: Any) -> Any:
        argument = samples if self._job.batched else samples[0]
        return self._loader.call(self._job.collate_fn, wanted, argument)

    # Bad samples.

    def _deal_with(
        self, failed: list[int], order: BatchOrder, samples: list[Any], images: NDArray[Any] | None = None
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
        own = slice(row, row + 1)
        generations, turns = rows_of(order.generations, own), rows_of(order.turns, own)
        wanted = Wanted(self._seed, order.epoch, order.step, [index], [id_], generations, turns)
        into = None if images is None else images[row : row + 1]
        return self._loader.load(wanted, stop_at_failure=False, into=into)[0], id_


def _fetcher(job: Job, together: bool) -> Callable[[list[Any]], Any]:
    """What makes a batch of indices with the user's code and nothing else."""
    dataset, collate_fn = job.dataset, job.collate_fn
    if not job.batched:
        return lambda indices: collate_fn(dataset[indices[0]])
    if together:
        return lambda indices: collate_fn(dataset.__getitems__(indices))
    return lambda indices: collate_fn([dataset[index] for index in indices])
