"""Loading without workers: each batch is loaded in the training loop's own thread when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from rekindle.choose import BatchOrder, EndOfEpoch, Orders
from rekindle.choose.position import CopyStates
from rekindle.core import global_rng
from rekindle.core.counters import Counters
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.core.interrupts import dataset_call, is_interrupt, running_timers
from rekindle.core.samples import Batch, Index, Sample
from rekindle.core.sole_use import turns_of_others
from rekindle.run import batch_layout
from rekindle.run.bad_samples import BadSamples, BatchFailures, FailedSample, bad_rows, failed_rows
from rekindle.run.caching_loader import sample_loader
from rekindle.run.in_flight_batch import CollatedBatch
from rekindle.run.job import Job
from rekindle.run.sample_loader import Images, Loaded, LoadRequest, load_items
from rekindle.run.sample_timing import Cost


class Inline:
    """Carries out orders one by one; the batches are the same as those of any number of workers."""

    def __init__(
        self, job: Job, *, seed: int, rows: bool, bad_samples: BadSamples, counters: Counters
    ) -> None:
        self._job, self._seed = job, seed
        self._bad_samples, self._counters = bad_samples, counters
        self._loader = sample_loader(job, exclusive=generators_kept)
        dataset = job.dataset
        self._together = job.batched and job.together
        # Tensors held in memory are gathered for a whole batch at once.
        self._gathered_from = dataset if rows and type(dataset) is TensorDataset and not job.reused else None
        self._tensors: tuple[torch.Tensor, ...] | None = None
        self._row_nbytes = 0
        self._native = batch_layout.describe_native(dataset.example()) if rows and job.native else None
        self._layout: batch_layout.Layout | None = None  # of the native batch before
        self._will_need = job.will_need
        self._orders: Orders = iter(())
        self.closed, self.steady = False, True
        self.workers = ()
        self.copies, self.states = None, ()

    def begin(self, orders: Orders, worker_seed: Callable[[int], int]) -> None:
        """Carry out these orders from now on."""
        self._orders = orders

    def load_states(self, states: CopyStates, *, are_there: bool) -> None:
        """Nothing: there are no copies of the dataset."""

    def next(self) -> CollatedBatch | EndOfEpoch:
        """The next batch, or the mark that the epoch is over."""
        while True:
            self.steady = False
            order = next(self._orders)
            if isinstance(order, EndOfEpoch):
                return order
            timed = self._counters.costs is not None
            loaded: Loaded = {}
            outer = dataset_call.script_timers
            try:
                if self._will_need is not None:
                    dataset_call.script_timers = running_timers()
                    self._announce(self._will_need, order)
                made = None if timed else self._gather(order)
                if made is None:
                    dataset_call.script_timers = running_timers()
                    made = None if timed else self._load_at_once(order, loaded)
                    made = made or self._load_in_parts(order, loaded)
            except Exception as error:
                self.steady = not is_interrupt(error)
                raise
            finally:
                dataset_call.script_timers = outer
            if made is not None:
                return made

    def _announce(self, will_need: Callable[[Sequence[Index]], None], order: BatchOrder) -> None:
        """Let the dataset start to fetch this batch and, where there is a plan, the one after it."""
        plan, after = order.plan, order.step + 1
        coming = [] if plan is None or after >= plan.steps else plan.batch(after).ids.tolist()
        try:
            will_need(order.indices + coming)
        except Exception as error:  # What is wrong shows when the samples are loaded.
            if is_interrupt(error):
                raise

    def poll(self) -> None:
        """Nothing is ever ready before it is asked for."""

    def _load_at_once(self, order: BatchOrder, loaded: Loaded) -> CollatedBatch | None:
        """A batch the fast way, with nothing around the user's code; None if that does not work.

        If a sample fails, what the dataset was asked for is in `loaded`: `_load_in_parts` goes on from there.
        """
        job = self._job
        if self._native is not None or job.reused is not None or not self._loader.drew_nothing:
            return None
        if self._together and not job.stop_at_failure:  # If it fails, samples are loaded one by one.
            return None
        turns = turns_of_others()
        restores, marks = [generator.save() for generator in GENERATORS], global_rng.marks()
        batch = None
        try:
            if self._together:
                samples = job.dataset.__getitems__(order.indices)
            else:
                samples = load_items(job.dataset, order.indices, loaded)
            batch = job.collate(samples)
        except Exception as error:
            if is_interrupt(error) or (global_rng.marks() == marks and not loaded):
                raise
        # If another thread has used them meanwhile, which puts them back, it was not this dataset.
        if global_rng.marks() != marks and turns is not None and turns == turns_of_others():
            is_good = self._loader.keeps(marks)
            for restore in restores:
                restore()
            if not is_good:
                loaded.clear()
                return None
        return None if loaded else CollatedBatch(order, order.ids, batch, at_once=True)

    def _gather(self, order: BatchOrder) -> CollatedBatch | None:
        """A batch of rows of tensors in memory; None if samples are not that."""
        tensors = self._tensors_now()
        if tensors is None or not order.plain or order.ids.min(initial=0) < 0:
            return None
        rows = torch.from_numpy(np.ascontiguousarray(order.ids))
        try:
            gathered = [tensor.index_select(0, rows) for tensor in tensors]
        except IndexError:
            return None  # It would not say which sample; asking for them one by one does.
        nbytes = len(order.indices) * self._row_nbytes
        return CollatedBatch(order, order.ids, gathered, at_once=True, nbytes=nbytes)

    def _tensors_now(self) -> tuple[torch.Tensor, ...] | None:
        """The tensors that samples are gathered from, which the script may replace at any time."""
        if self._gathered_from is None:
            return None
        tensors = self._gathered_from.tensors
        kinds = {tuple, *map(type, tensors)}
        if not all(map(batch_layout.is_collated_by_torch, kinds)):
            return None  # A script has told torch to collate these in its own way.
        if tensors is not self._tensors:
            if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
                return None
            self._tensors, self._row_nbytes = tensors, sum(tensor[:1].nbytes for tensor in tensors)
        return tensors

    def _load_in_parts(self, order: BatchOrder, loaded: Loaded) -> CollatedBatch | None:
        """A batch, with the time of its parts recorded; None if nothing is left of it."""
        started = time.perf_counter()
        self._loader.seconds, self._loader.fresh = 0.0, []
        made = self._load(order, loaded)
        took = time.perf_counter() - started
        self._note_costs(order)
        self._counters.load.add(self._loader.seconds, 0, len(order.indices))
        self._counters.collate.add(took - self._loader.seconds, 0, len(order.indices))
        return made

    def _note_costs(self, order: BatchOrder) -> None:
        """Record the cost of each sample, if asked for; an equal share, if all were loaded at once."""
        noted, costs = self._counters.costs, self._loader.costs
        if noted is not None:
            shared = [Cost(self._loader.seconds / max(1, len(order.ids)), -1)] * len(order.ids)
            noted.add(order.ids, list(costs) or shared)
        costs.clear()

    def close(self) -> None:
        """Nothing runs in between: there is nothing to end."""
        self.closed = True

    def _load(self, order: BatchOrder, loaded: Loaded) -> CollatedBatch | None:
        job, loader = self._job, self._loader
        request = LoadRequest(
            self._seed, order.batch_turn, order.step, order.indices, order.ids, order.generations, order.turns
        )
        if self._native is not None:
            return self._load_native(order, request, self._native)
        if self._together:
            try:
                return CollatedBatch(order, order.ids, self._collate(request, loader.load_together(request)))
            except Exception as error:  # Found again, with its row, when samples are loaded one by one.
                if job.stop_at_failure or is_interrupt(error):
                    raise
        timed = self._counters.costs is not None
        samples = loader.load(request, stop_at_failure=job.stop_at_failure, timed=timed, loaded=loaded)
        fresh = self._take_fresh()
        if not failed_rows(samples):
            return CollatedBatch(order, order.ids, self._collate(request, samples), fresh=fresh)
        order, ids, left_out = self._handle_failures(order, request, samples, fresh)
        good = [sample for sample in samples if type(sample) is not FailedSample]
        if not good:
            return None
        return CollatedBatch(order, ids, self._collate(request, good), left_out, fresh=fresh)

    def _load_native(
        self, order: BatchOrder, request: LoadRequest, spec: batch_layout.Branch
    ) -> CollatedBatch | None:
        """A batch whose images a native dataset writes straight to their rows."""
        count = len(order.indices)
        layout = self._layout
        if layout is None or layout.rows != count:
            layout = self._layout = batch_layout.Layout(spec, count)
        image_rows, *label_rows = layout.tensors(np.empty(layout.nbytes, dtype=np.uint8), count)
        assert image_rows is not None
        images = image_rows.numpy()
        timed = self._counters.costs is not None
        labels = self._loader.load(
            request, stop_at_failure=self._job.stop_at_failure, timed=timed, into=images
        )
        fresh = self._take_fresh()
        leaves: list[Batch] = [image_rows, *label_rows]
        ids, left_out = order.ids, list[int]()
        if failed_rows(labels):
            order, ids, left_out = self._handle_failures(order, request, labels, fresh, images)
            rows = torch.from_numpy(np.delete(np.arange(count), left_out))
            leaves = [leaf.index_select(0, rows) for leaf in leaves]
            labels = [label for label in labels if type(label) is not FailedSample]
        columns = batch_layout.columns(labels, spec.parts[1])
        for leaf, column, target in zip(layout.leaves[1:], columns, leaves[1:], strict=True):
            batch_layout.write(leaf, column, batch_layout.writable(leaf, target))
        if not labels:
            return None
        return CollatedBatch(order, ids, batch_layout.assemble(spec, leaves), left_out, fresh=fresh)

    def _take_fresh(self) -> list[bool] | None:
        """Which of the samples just loaded were not in the cache; None if there is none."""
        fresh, self._loader.fresh = self._loader.fresh, []
        return fresh or None

    def _collate(self, request: LoadRequest, samples: list[Sample]) -> Batch:
        argument = samples if self._job.batched else samples[0]
        return self._loader.call(self._job.collate_fn, request, argument)

    def _handle_failures(
        self,
        order: BatchOrder,
        request: LoadRequest,
        samples: list[Sample],
        fresh: list[bool] | None,
        images: Images | None = None,
    ) -> tuple[BatchOrder, NDArray[np.int64], list[int]]:
        """Raise, skip or substitute failed `samples`, in place.

        Returns the order with the turns of the substitutes, the ids and the rows left out.
        """
        failures, ids = BatchFailures(), order.ids.copy()
        turns = np.broadcast_to(order.turns, ids.shape).copy()
        while rows := failed_rows(samples):
            if self._bad_samples.on_error == "raise":
                samples[rows[0]].reraise(order.indices[rows[0]])
            bad = bad_rows(order, ids, {row: samples[row].reason for row in rows})
            if not self._bad_samples.substitutes(len(rows), len(samples)):
                failures.found += bad.values()
                break
            for row, index, id_, turn in failures.substitutes(self._seed, order, bad):
                own = request.rows(slice(row, row + 1))._replace(indices=[index], ids=[id_], turns=[turn])
                into = None if images is None else images[row : row + 1]
                (samples[row],) = self._loader.load(own, stop_at_failure=False, into=into)
                if fresh is not None:
                    (fresh[row],) = self._take_fresh() or (True,)
                ids[row], turns[row] = id_, turn
        for found in failures.found:
            self._bad_samples.note(found, order)
        return order._replace(turns=turns), ids, rows
