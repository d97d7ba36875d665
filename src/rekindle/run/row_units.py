"""Units of kind "rows": every sample is written straight to its row of the batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

import torch

from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Sample
from rekindle.run import batch_layout, batch_pickle
from rekindle.run.bad_samples import FailedSample, failed_rows
from rekindle.run.batch_units import pack
from rekindle.run.job import Job
from rekindle.run.messages import Unit
from rekindle.run.unit_loader import UnitLoader, request_of
from rekindle.run.unit_queue import UnitQueue


class RowUnits:
    """Loads units row by row.

    The layout of the rows is learnt from the first sample: the worker that loads it describes it, and the
    engine answers with a layout for all workers. Samples that do not fit it are handed over as they are, and
    collated in the main process: they are not asked for again, unless they cannot be pickled.
    """

    def __init__(
        self, job: Job, queue: UnitQueue, loader: UnitLoader, uses_worker_id: Callable[[], bool]
    ) -> None:
        self._job, self._queue, self._loader = job, queue, loader
        self._uses_worker_id = uses_worker_id
        self._native = batch_layout.describe_native(job.dataset.example()) if job.native else None

    def run(self, unit: Unit) -> None:
        """Load a unit, write its samples to their rows and report it as done."""
        if self._native is not None:
            self._run_native(unit, self._native)
            return
        queue, stop = self._queue, self._job.stop_at_failure
        samples, described = self._load(unit)
        errors = self._loader.errors(samples, unit)
        if not described or (errors and stop):
            queue.done(unit, errors=errors)
            return
        slot = queue.row_slot(unit)
        started, objects = time.perf_counter(), None
        if slot is not None:
            assert queue.layout is not None
            with suppress(batch_layout.MismatchError):
                objects = self._write(samples, unit.start, queue.layout.spec, queue.rows(slot))
        sizes, packed = (None, None) if objects is not None else self._hand_over(unit, samples)
        queue.collate_seconds += time.perf_counter() - started
        queue.done(
            unit,
            len(samples) - len(errors),
            objects=objects,
            sizes=sizes,
            packed=packed,
            errors=errors,
            loose=sizes is not None,
            mismatch=objects is None and sizes is None,
        )

    def _hand_over(self, unit: Unit, samples: list[Sample]) -> tuple[list[int] | None, bytes | None]:
        """Pack samples as they are: in memory of their own, for others write to the rows of the slot."""
        if not self._job.asks_once:
            return None, None
        good = [sample for sample in samples if type(sample) is not FailedSample]
        try:
            encoded = batch_pickle.encode_samples(good)
        except Exception as error:  # A memoryview, say: their batch can be sent, as torch's workers do.
            if is_interrupt(error):
                raise
            return None, None
        return pack(self._queue, unit._replace(slot=None), encoded)

    def _run_native(self, unit: Unit, spec: batch_layout.Branch) -> None:
        """Let a native dataset write the images to their rows; only the labels are written here."""
        queue = self._queue
        if queue.layout is None and unit.slot is None:
            queue.describe(unit, spec, uses_worker_id=False)
        images, *label_rows = queue.rows(queue.slot(unit))
        assert images is not None
        rows = images[unit.start : unit.start + len(unit.indices)]
        into = rows.numpy() if isinstance(rows, torch.Tensor) else rows
        labels = self._loader.load(unit, request_of(unit), into)
        errors = self._loader.errors(labels, unit)
        if errors and self._job.stop_at_failure:
            queue.done(unit, errors=errors)
            return
        started = time.perf_counter()
        queue.nbytes += into.nbytes
        objects = self._write(labels, unit.start, spec.parts[1], label_rows)
        queue.collate_seconds += time.perf_counter() - started
        queue.done(unit, len(labels) - len(errors), objects=objects, errors=errors)

    def _load(self, unit: Unit) -> tuple[list[Sample], bool]:
        """The unit's samples, and whether the engine knows what samples look like."""
        request = request_of(unit)
        if self._queue.layout is not None or self._queue.has_no_rows or unit.slot is not None:
            return self._loader.load(unit, request), True
        # Describe the first sample, so that the engine makes the layout while the others are loaded.
        samples = self._loader.load(unit, request.rows(slice(0, 1)))
        described = self._describe(unit, samples)
        if described or not self._job.stop_at_failure:
            samples += self._loader.load(unit, request.rows(slice(1, None)))
            described = described or self._describe(unit, samples)
        return samples, described

    def _describe(self, unit: Unit, samples: list[Sample]) -> bool:
        """Tell the engine what samples look like; false if all of them failed."""
        for sample in samples:
            if type(sample) is not FailedSample:
                self._queue.describe(unit, batch_layout.describe(sample), self._uses_worker_id())
                return True
        return False

    def _write(
        self,
        samples: list[Sample],
        start: int,
        spec: batch_layout.Spec,
        targets: list[batch_layout.Rows | None],
    ) -> list[list[str | bytes]]:
        """Write what did not fail; returns the columns of strings."""
        objects: list[list[str | bytes]] = []
        leaves = batch_layout.leaves(spec)
        for begin, end in _runs_of_good(samples):
            good = samples if end - begin == len(samples) else samples[begin:end]
            columns = batch_layout.columns(good, spec)
            strings = []
            for leaf, column, target in zip(leaves, columns, targets, strict=True):
                if target is None:
                    strings.append(batch_layout.check_strings(leaf, column))
                    continue
                rows = target[start + begin : start + end]
                batch_layout.write(leaf, column, rows)
                self._queue.nbytes += rows.nbytes
            objects = [a + b for a, b in zip(objects, strings, strict=True)] if objects else strings
        return objects


def _runs_of_good(samples: list[Sample]) -> list[tuple[int, int]]:
    """The stretches of samples that did not fail, as (begin, end)."""
    edges = [-1, *failed_rows(samples), len(samples)]
    return [(a + 1, b) for a, b in pairwise(edges) if a + 1 < b]
