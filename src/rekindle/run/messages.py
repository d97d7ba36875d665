"""The messages between the engine and its workers. All of them are small: samples travel in the slots."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from rekindle.choose.position import DatasetState
from rekindle.core.samples import Index
from rekindle.run.batch_layout import Layout, Spec
from rekindle.run.sample_timing import Cost
from rekindle.run.worker_exception import WorkerException

Kind = Literal["rows", "batch", "stream"]


class Unit(NamedTuple):
    """Engine to worker: a part of a batch to load, or all of it.

    "rows": load the samples and write each to its row of the slot, from `start` on. "batch": load all the
    samples, collate them and pack the result. "stream": the same with the next samples of the worker's own
    iterator. A unit without a slot gets one with `AssignSlot`, once its worker knows how large it must be.
    """

    batch: int
    part: int
    kind: Kind
    seed: int
    worker_seed: int  # what torch would have seeded this epoch's workers with
    batch_turn: int
    step: int
    start: int
    indices: list[Index]
    ids: list[int] | None  # None: the same as the indices
    generations: int | list[int]
    turns: int | list[int]
    slot: int | None
    careful: bool  # load it alone and keep the shared status up to date: a worker died of this unit before
    timed: bool = False  # measure the cost of each sample
    epoch: int = 0


class SetLayout(NamedTuple):
    """Engine to worker: how the rows of every batch lie in its slot; None: hand samples over as they are."""

    layout: Layout | None


class AssignSlot(NamedTuple):
    """Engine to worker: the slot that a unit was waiting for."""

    batch: int
    part: int
    slot: int


class Cancel(NamedTuple):
    """Engine to worker: drop all units of batches below this one."""

    before: int


class StartStream(NamedTuple):
    """Engine to worker: a pass over an iterable dataset, from a state of it on."""

    base_seed: int
    batch_size: int
    state: DatasetState


class LoadState(NamedTuple):
    """Engine to worker: the state to put your copy of a map-style dataset into."""

    state: bytes


class CheckCopy(NamedTuple):
    """Engine to worker: say whether loading has changed your copy of the dataset before this epoch."""

    epoch: int


class UnmapSlots(NamedTuple):
    """Engine to worker: these slots no longer exist."""

    slots: list[int]


class MapSlot(NamedTuple):
    """Engine to worker: a slot to map; its file descriptor follows."""

    slot: int
    nbytes: int


class Described(NamedTuple):
    """Worker to engine: how the first sample is built, and whether the dataset has read its worker's id."""

    batch: int
    part: int
    spec: Spec | None
    uses_worker_id: bool


class NeedSlot(NamedTuple):
    """Worker to engine: a finished batch needs a slot of this size."""

    batch: int
    part: int
    nbytes: int


class SampleError(NamedTuple):
    """A sample (or, with row −1, a whole batch) that failed to load, and why."""

    row: int
    exception: WorkerException


class Spent(NamedTuple):
    """Where a worker's time went for a unit."""

    samples: int
    load_seconds: float
    collate_seconds: float
    idle_seconds: float
    nbytes: int


class Done(NamedTuple):
    """Worker to engine: a unit is finished, or dropped because it was cancelled.

    `objects` are the columns of strings of "rows"; `sizes` are those of the parts in the slot of a "batch",
    `packed` is the batch itself if it is too small to be worth a slot. `loose`: the samples do not fit their
    rows, and are handed over like a batch. `mismatch`: they do not, and are to be loaded again. `ended`: the
    worker's iterator is exhausted. `fresh`: which samples of a stream are not repeats, or which of others
    were not found in the cache. `dataset_state`: the state of the worker's copy of the dataset behind this
    batch, if it was taken. `costs`: what each sample of a timed unit cost.
    """

    batch: int
    part: int
    spent: Spent
    objects: list[list[str | bytes]] | None = None
    sizes: list[int] | None = None
    packed: bytes | None = None
    errors: tuple[SampleError, ...] = ()
    loose: bool = False
    mismatch: bool = False
    ended: bool = False
    fresh: list[bool] | None = None
    dataset_state: bytes | str | None = None
    costs: tuple[Cost, ...] = ()


class Ready(NamedTuple):
    """Worker to engine: started, and waiting for work."""


class CopyChecked(NamedTuple):
    """Worker to engine: whether its copy of the dataset is proven to be as it was when the worker started."""

    epoch: int
    unchanged: bool


class StartFailed(NamedTuple):
    """Worker to engine: the worker's start (its `worker_init_fn`, say) raised an exception."""

    exception: WorkerException


class WorkerDied(NamedTuple):
    """Pool to engine: a worker process died, and another runs under the numbers of its workers."""

    how: str
    rows: dict[int, int]  # by worker: what it was loading, −1 if unknown or nothing
    stopped: bool  # by a signal from outside, not by what it was doing


class Replaced(NamedTuple):
    """Pool to engine: workers died, others run under their numbers, and load again what those had not."""

    workers: list[int]


ToWorker: TypeAlias = (
    Unit | SetLayout | AssignSlot | Cancel | StartStream | LoadState | CheckCopy | UnmapSlots | MapSlot
)
FromWorker: TypeAlias = Described | NeedSlot | Done | Ready | CopyChecked | StartFailed
Event: TypeAlias = FromWorker | WorkerDied | Replaced
