"""The parts of a dataset that all workers share instead of having copies: long lists, large arrays.

Unobservable to the dataset: a list is shared where all code that runs in workers is proven only to read items
of it (`core/long_lists.py`), an array as private pages of one file (`private_arrays.py`). Forked workers have
the arrays of the main process already.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

from rekindle.core.list_stand_in import ListStandIn, MutableStandIn
from rekindle.core.long_lists import LongLists, instance_dict, long_lists
from rekindle.core.shared_list import SharedRows
from rekindle.run.job import Job
from rekindle.run.private_arrays import ArrayFile, is_shared

_LOGGER = logging.getLogger(__name__)
_SWITCH = "REKINDLE_SHARE_DATASET"  # 0: every worker has its own copy of everything
# The lists of a forked worker whose place stand-ins have taken: freeing one would copy all that it holds.
_NEVER_FREED: list[list[object]] = []

StandInParts: TypeAlias = tuple[SharedRows, bool]


class SharedParts:
    """What of a job's dataset is shared, until the last worker that could need it was started."""

    def __init__(self, job: Job) -> None:
        self._is_on = os.environ.get(_SWITCH, "1") != "0"
        # Workers whose copies are compared with the originals have nothing that takes long to look at.
        found = LongLists([], [])
        if self._is_on and job.watched is None:
            found = long_lists(job.dataset, job.collate_fn, job.worker_init_fn, job.reused)
        for line in found.unproven:
            _LOGGER.info("every worker has its own copy of %s", line)
        self._lists = found.proven
        self._rows = [SharedRows.of(entry.values, len(entry.values)) for entry in self._lists]
        self._arrays: ArrayFile | None = None

    @property
    def _stand_ins(self) -> list[StandInParts]:
        return [(rows, entry.mutable) for rows, entry in zip(self._rows, self._lists, strict=True)]

    @property
    def list_ids(self) -> set[int]:
        """The ids of the lists that are shared."""
        return {id(entry.values) for entry in self._lists}

    def put_in_place(self) -> None:
        """In a forked worker, let stand-ins take the place of the lists."""
        for entry, parts in zip(self._lists, self._stand_ins, strict=True):
            stand_in = _stand_in(parts)
            _NEVER_FREED.append(entry.values)
            for owner, name in entry.owners:
                instance_dict(owner)[name] = stand_in

    def pickled(self, job: Job) -> tuple[bytes, list[StandInParts]]:
        """The job for a worker that is being started, and what it needs to unpickle it."""
        if self._is_on and self._arrays is None:
            self._arrays = ArrayFile()
        buffer = io.BytesIO()
        numbers = {id(entry.values): number for number, entry in enumerate(self._lists)}
        kind = _ListsPickler if numbers else _ArraysPickler
        kind(buffer, self._arrays, numbers).dump(job)
        return buffer.getvalue(), self._stand_ins


def unpickled(content: bytes, stand_ins: list[StandInParts]) -> Job:
    """The job that was pickled."""
    unpickler = _Unpickler(io.BytesIO(content), [*map(_stand_in, stand_ins)])
    job: Job = unpickler.load()
    return job


def _stand_in(parts: StandInParts) -> ListStandIn:
    rows, mutable = parts
    return MutableStandIn(rows) if mutable else ListStandIn(rows)


class _ArraysPickler(ForkingPickler):
    """Pickles large arrays as places in a file."""

    def __init__(self, buffer: io.BytesIO, arrays: ArrayFile | None, numbers: dict[int, int]) -> None:
        super().__init__(buffer)
        self._arrays, self._numbers = arrays, numbers

    def reducer_override(self, value: object) -> Any:
        if self._arrays is not None and is_shared(value):
            return self._arrays.reduce(value)  # type: ignore[arg-type]
        return NotImplemented


class _ListsPickler(_ArraysPickler):
    """Pickles some lists as numbers, too. It is asked about each object, so only if there are any."""

    def persistent_id(self, value: object) -> int | None:
        return self._numbers.get(id(value)) if type(value) is list else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, stand_ins: list[ListStandIn]) -> None:
        super().__init__(buffer)
        self._stand_ins = stand_ins

    def persistent_load(self, number: int) -> ListStandIn:
        return self._stand_ins[number]
