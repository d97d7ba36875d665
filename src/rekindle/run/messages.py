"""What the engine and its workers say to each other. All of it small: samples travel in the slots."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from rekindle.run.layout import Layout, Spec
from rekindle.run.sample_costs import Cost
from rekindle.run.told import ToldError

Kind = Literal["rows", "batch", "stream"]


class Unit(NamedTuple):
    """Engine to worker: a piece of work.

    "rows": load the samples and write each to its row of the slot, from `start` on. "batch": load all the
    samples, collate them and pack what comes out. "stream": the same with the next samples of the worker's
    own iterator. A unit without a slot gets one with `Place`, once its worker knows how large it must be.
    """

    ticket: int
    part: int
    kind: Kind
    seed: int
    worker_seed: int  # what torch would have seeded this epoch's workers with
    epoch: int
    step: int
    start: int
    indices: list[Any]
    ids: list[int] | None  # None: the same as the indices
    generations: int | list[int]
    turns: int | list[int]
    slot: int | None
    careful: bool
    timed: bool = False  # tell what each sample cost


class Arrange(NamedTuple):
    """Engine to worker: how the rows of every batch lie in its slot from now on."""

    layout: Layout


class Place(NamedTuple):
    """Engine to worker: the slot that a unit was waiting for."""

    ticket: int
    part: int
    slot: int


class Cancel(NamedTuple):
    """Engine to worker: nobody waits for tickets below this one any more."""

    before: int


class Begin(NamedTuple):
    """Engine to worker: a new pass over an iterable data set, its first `skip` batches left out."""

    base_seed: int
    skip: int
    batch_size: int


class Forget(NamedTuple):
    """Engine to worker: these slots are gone."""

    slots: list[int]


class MapSlot(NamedTuple):
    """Engine to worker: a slot to map; its descriptor follows."""

    slot: int
    nbytes: int


class Described(NamedTuple):
    """Worker to engine: what the first sample looks like, and whether it depends on the worker."""

    ticket: int
    part: int
    spec: Spec | None
    asked_which_worker: bool


class Need(NamedTuple):
    """Worker to engine: a finished batch needs a slot of this size."""

    ticket: int
    part: int
    nbytes: int


class SampleError(NamedTuple):
    """A sample (or, with row −1, a whole batch) that could not be made, and why."""

    row: int
    told: ToldError


class Spent(NamedTuple):
    """Where a worker's time went for a unit."""

    samples: int
    load_seconds: float
    collate_seconds: float
    idle_seconds: float
    nbytes: int


class Done(NamedTuple):
    """Worker to engine: a unit is finished.

    `objects` are the columns of strings of "rows"; `sizes` tell what lies where in the slot of a "batch",
    `packed` is the batch itself if it is too small to be worth a slot. `mismatch` says that the samples do
    not fit the layout, `ended` that the worker's iterator is exhausted, `fresh` which samples
    of a stream are no repeats, `costs` what each sample of a unit cost that was to be timed.
    """

    ticket: int
    part: int
    spent: Spent
    objects: list[list[Any]] | None = None
    sizes: list[int] | None = None
    packed: bytes | None = None
    errors: tuple[SampleError, ...] = ()
    mismatch: bool = False
    ended: bool = False
    fresh: list[bool] | None = None
    cancelled: bool = False
    costs: tuple[Cost, ...] = ()


class Ready(NamedTuple):
    """Worker to engine: started, and waiting for work."""


class StartFailed(NamedTuple):
    """Worker to engine: the worker's start (its `worker_init_fn`, say) raised an exception."""

    told: ToldError


class Death(NamedTuple):
    """Crew to engine: a worker is gone, and another runs in its place."""

    how: str
    row: int  # that it was making, −1 if it did not say
    guiltless: bool  # it was stopped, not killed by what it was doing
