"""The order that a user's own sampler gives, exactly as torch would follow it, and resumable."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from contextlib import suppress
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from rekindle.choose.batch_orders import BatchOrder, EndOfEpoch, planned_order, unplanned_order
from rekindle.choose.draws import DrawCounts
from rekindle.choose.index_digest import batch_content, extended_digest
from rekindle.choose.partition import part_of, share_of
from rekindle.choose.plan import EpochPlan
from rekindle.choose.planned_sampler import set_epoch_within
from rekindle.choose.refresh_schedule import Refresh
from rekindle.choose.sampler_epochs import SamplerEpoch
from rekindle.choose.sampler_generators import (
    GLOBAL,
    OwnStream,
    generators_of,
    global_digest,
    same_states,
    set_generators,
)
from rekindle.choose.sampler_memory import SamplerMemory
from rekindle.choose.sampler_state import SamplerState, WorkerSeeds, stateful_part, wrapped_sampler
from rekindle.core.counter_rng import NEXT_DRAW
from rekindle.core.samples import Index
from rekindle.errors import ArgumentError, StateError

_RECENT = 256  # samples


class SamplerOrders:
    """An epoch of a sampler (or batch sampler) that is not ours; an iterator of orders.

    Torch's order depends on the generators at the moment an epoch begins, so what they were is kept, and a
    resumed epoch begins from there: the sampler's indices are drawn again and those that were used already
    are passed over, without loading a sample. A sampler with `state_dict` and `load_state_dict` is resumed
    by these instead.

    Each draw of a sample is a view of its own, on every rank: see `share_of`.
    """

    def __init__(
        self,
        sampler: Iterable[Index],
        *,
        batched: bool,
        epoch: int,
        generator: torch.Generator | None,
        seeds: WorkerSeeds | None = None,
        resume: SamplerState | None = None,
        without: Collection[int] = (),
        keep_recent: bool = False,
        refresh: Refresh | None = None,
        plan_of: Callable[[NDArray[np.int64]], EpochPlan] | None = None,
        sampler_epoch: SamplerEpoch | None = None,
        memory: SamplerMemory | None = None,
    ) -> None:
        """`without` are steps that were yielded before, out of order. `keep_recent` has each order name the
        samples before it, which may be substitutes for one that fails. `refresh` says when cached parts are
        recomputed. `plan_of` makes a plan of the samples of an epoch: all are drawn at once then.
        `sampler_epoch` must not take what a pass makes of the sampler's epoch for one that a script set;
        `memory` is to know what else it makes of a sampler.
        """
        set_epoch_within(sampler, epoch)
        self._sampler_epoch = SamplerEpoch(sampler) if sampler_epoch is None else sampler_epoch
        self._memory = memory or SamplerMemory()
        self._stream: OwnStream | None = None  # that the sampler draws from, in place of the global one
        self._refresh, self._plan_of = refresh, plan_of
        self._plan: EpochPlan | None = None
        self._sampler = sampler
        self._batched, self._epoch, self._generator = batched, epoch, generator
        self._without = frozenset(without)
        self._stateful = stateful_part(sampler)
        self._first_state: object = None  # the sampler's, when an epoch began that is planned as a whole
        self._recent: deque[Index] | None = deque(maxlen=_RECENT) if keep_recent else None
        self._ended = False
        self._share, self._part = share_of(sampler), part_of(sampler)
        self._counts = DrawCounts()
        self._endless = not isinstance(sampler, Sized)
        self._step = self._seen = 0
        self._digest: int | None = 0
        seeds = seeds or WorkerSeeds()
        self._seeds_once, self._draws_seed, self.base_seed = seeds.once, seeds.kept is None, seeds.kept or 0
        if resume is not None and resume.step is None:
            self._go_back_to(resume)
            if resume.seeds_once is not None:
                self.base_seed, self._draws_seed = resume.base_seed, resume.draws_seed
            resume = None
        if resume is not None:
            self._sampler_epoch.go_back_to(resume.epoch)
        self._own_epoch = self._sampler_epoch.epoch
        self._start = generators_of(sampler, generator)
        if resume is None:
            self._memory.begin(sampler, generator)
            self._iterator = self._sampler_epoch.during(self._begin)
        else:
            assert resume.step is not None
            self._step, self._start = resume.step, resume.start
            self.base_seed, self._draws_seed = resume.base_seed, resume.draws_seed
            self._iterator = self._sampler_epoch.during(lambda: self._resume(resume))
        self._drawn: deque[BatchOrder | EndOfEpoch] = deque()  # what was given and may be asked for again
        self._again: deque[BatchOrder | EndOfEpoch] = deque()  # what is given again first
        self.is_drawing = False  # also after an interrupt: the sampler may have lost what it was to give
        # What resuming after so many batches takes, for all that are not yielded yet.
        self._after: dict[int, _Reached] = {}
        self._remember(np.empty(0, dtype=np.int64), b"")

    def _begin(self) -> Iterator[Index]:
        """A new pass over the sampler, drawing from the generators what torch draws, in its order."""
        iterator = self._iterated()
        if self._draws_seed:
            self.base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self._generator))
        return iterator

    def _iterated(self) -> Iterator[Index]:
        if self._plan_of is None:
            return iter(self._sampler)
        self._first_state = self._sampler_state()
        # What a batch sampler leaves out at the end is the plan's to leave out.
        samples = self._sampler
        if self._batched and isinstance(samples, BatchSampler):
            samples = samples.sampler
        return self._planned(iter(samples), self._plan_of)

    def _planned(
        self, iterator: Iterator[Index], plan_of: Callable[[NDArray[np.int64]], EpochPlan]
    ) -> Iterator[Index]:
        """The batches of a plan, of all that is drawn."""
        drawn = np.array([_integer(index) for index in iterator], dtype=np.int64)
        plan = self._plan = plan_of(drawn)
        for step in range(plan.steps):
            indices = plan.batch(step).ids.tolist()
            yield indices if self._batched else indices[0]

    def _go_back_to(self, between: SamplerState) -> None:
        """Put the generators and the sampler where they were when a state was saved between two epochs."""
        set_generators(between.start, self._sampler, self._generator)
        if self._stateful is None or between.sampler is None:
            return
        now = generators_of(self._sampler, self._generator)
        self._stateful.load_state_dict(copy.deepcopy(between.sampler))
        nothing = object()
        if next(iter(self._sampler), nothing) is not nothing:
            # It starts over at its end. One that does not has nothing left; asked again, it begins the next.
            self._stateful.load_state_dict(copy.deepcopy(between.sampler))
            set_generators(now, self._sampler, self._generator)

    def _resume(self, state: SamplerState) -> Iterator[Index]:
        if self._stateful is not None and state.sampler is not None:
            self._stateful.load_state_dict(state.sampler)
            self._seen = state.seen
            if state.draws is not None:
                self._counts = DrawCounts.resumed(state.draws)
            done = 0 if self._plan_of is None else self._step
            return islice(self._iterated(), done, None)
        self._memory.go_back_to(self._sampler, self._generator, state.kept_first or {})
        self._memory.begin(self._sampler, self._generator)
        now = generators_of(self._sampler, self._generator)
        set_generators(self._start, self._sampler, self._generator)
        iterator = self._begin()
        ahead, is_same = self._draw_again(iterator, state)
        if self._step and not is_same:
            iterator = self._nothing_left(chain(ahead, iterator), state)
            ahead = []
        drawn_from = generators_of(self._sampler, self._generator)
        if self._step == 0 and not ahead and not same_states(now, drawn_from):
            # Most samplers draw their order when they are asked for the first index: let that be now.
            ahead = list(islice(iterator, 1))
            drawn_from = generators_of(self._sampler, self._generator)
        # The global ones are not ours to move; those of the loader and the sampler go on from here.
        set_generators({name: now[name] for name in now if name in GLOBAL}, self._sampler, None)
        if state.stream is not None and global_digest(now) != state.stream == global_digest(drawn_from):
            self._stream = OwnStream(drawn_from)
        self._memory.put_back(self._sampler, self._generator, state.kept or {})
        return chain(ahead, iterator)

    def _draw_again(self, iterator: Iterator[Index], state: SamplerState) -> tuple[list[Index], bool]:
        """Draw what had been drawn: the batches that were not yielded, and whether all are the same."""
        ahead: list[Index] = []
        digest, seen = self._digest, 0
        for number, drawn in enumerate(islice(iterator, state.drawn or self._step)):
            indices = self._indices(drawn)
            ids, content = batch_content(indices, seen)
            digest, seen = extended_digest(digest, content), seen + len(indices)
            if number >= self._step:
                ahead.append(indices if self._batched else drawn)
                continue
            self._counts.add(ids)
            self._seen, self._digest = seen, digest
            if self._recent is not None:
                self._recent.extend(indices)
        if state.ended:
            more = list(islice(iterator, 1))
            if more:
                return ahead + more, False
        is_same = None in (state.digest, digest) or state.digest == digest
        if state.is_of_another_division(self._part):
            is_same = False
        return ahead, is_same or state.is_of_another_rank(self._part)

    def _nothing_left(self, iterator: Iterator[Index], state: SamplerState) -> Iterator[Index]:
        """An iterator without an index; StateError if it has one, or had when the state was saved.

        For what comes is of another order then.
        """
        nothing, had_more = object(), not state.ended and self._step < (state.length or 0)
        if next(iterator, nothing) is nothing and not had_more:
            return iterator
        self._memory.end(self._sampler, self._generator)
        own_epoch = "" if state.epoch is None else f", in its epoch {state.epoch}"
        name = type(wrapped_sampler(self._sampler)).__name__
        raise StateError(
            f"sampler: {name} gives another order than when the state was saved, after "
            f"batch {self._step} of epoch {self._epoch}{own_epoch}. Going on would repeat some samples and "
            "leave others out. Before you iterate, put it where it was then (its epoch, seed and generator), "
            "or give it state_dict() and load_state_dict(); or load no state, to begin the epoch again."
        )

    def _indices(self, drawn: Index) -> list[Index]:
        """What a batch consists of; as integers, if they name cached samples."""
        indices = list(drawn) if self._batched else [drawn]
        return indices if self._refresh is None else [_integer(index) for index in indices]

    def _remember(self, ids: NDArray[np.int64], content: bytes | None) -> None:
        """Note where the sampler stands after a batch of these samples."""
        state = self._sampler_state() if self._plan_of is None else self._first_state
        self._digest = extended_digest(self._digest, content)
        self._after[self._step] = _Reached(self._seen, state, ids, self._digest)

    def _sampler_state(self) -> object:
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def resume_after(self, steps: int) -> SamplerState:
        """What it takes to go on after so many batches of this epoch."""
        seen, state, *_ = self._after[steps]
        drawn = max(self._after)  # An interrupt may have left the next one half drawn.
        draws = kept_first = kept = stream = None
        if state is not None and self._plan_of is None:
            draws = self._counts.state([one.ids for step, one in self._after.items() if step > steps])
        if state is None:
            kept_first, kept = self._memory.within(self._sampler, self._generator)
            if self._start.keys() >= GLOBAL:
                stream = global_digest(self._start | self._stream_now())
        return SamplerState(
            steps,
            self._start,
            state,
            seen,
            self.base_seed,
            self._draws_seed,
            self._seeds_once,
            draws,
            self._own_epoch,
            drawn,
            self._ended,
            self._after[drawn].digest if state is None else None,
            stream,
            kept_first,
            kept,
            None if self._part is None else self._part.rank,
            None if self._part is None else self._part.world,
            self._length(),
        )

    def _length(self) -> int | None:
        """How many batches an epoch has, by what the sampler says."""
        try:
            return len(self._sampler) if isinstance(self._sampler, Sized) else None
        except (TypeError, NotImplementedError):  # A batch sampler's, where its samples have no number.
            return None

    def _stream_now(self) -> dict[str, torch.Tensor]:
        """The global generators, as the sampler draws from them."""
        return generators_of(None, None) if self._stream is None else self._stream.states()

    def forget_before(self, steps: int) -> None:
        """Promise not to ask about fewer batches than these."""
        self._after = {step: what for step, what in self._after.items() if step >= steps}
        self._drawn = deque(one for one in self._drawn if isinstance(one, EndOfEpoch) or one.step >= steps)

    def go_back(self, steps: int, without: Collection[int]) -> None:
        """Give the orders after so many batches again, without some, as they were drawn."""
        self._again = deque(
            one
            for one in self._drawn
            if isinstance(one, EndOfEpoch) or (one.step >= steps and one.step not in without)
        )

    def __iter__(self) -> SamplerOrders:
        return self

    def __next__(self) -> BatchOrder | EndOfEpoch:
        if self._again:
            return self._again.popleft()
        if self._ended and not self.is_drawing:
            raise StopIteration
        self.is_drawing = True
        order = self._draw()
        self._drawn.append(order)
        self.is_drawing = False
        return order

    def _draw(self) -> BatchOrder | EndOfEpoch:
        while not self._ended:
            try:
                drawn = self._sampler_epoch.during(self._next)
            except StopIteration:
                self._ended = True
                self._memory.end(self._sampler, self._generator)
                return EndOfEpoch(self._epoch)
            indices = self._indices(drawn)
            step, seen = self._step, self._seen
            ids, content = batch_content(indices, seen)
            self._step += 1
            self._seen += len(indices)
            self._remember(ids, content)
            recent = [] if self._recent is None else list(self._recent)
            if self._recent is not None:
                self._recent.extend(indices)
            if self._plan is not None:
                order = planned_order(self._plan, step)
                order = self._with_turns(order, order.turns)
            else:
                order = self._ordered(step, seen, indices, ids)
            if step not in self._without:
                return order._replace(recent=recent)
        raise StopIteration

    def _next(self) -> Index:
        if self._stream is None:
            return next(self._iterator)
        return self._stream.during(self._iterator.__next__)

    def _ordered(self, step: int, seen: int, indices: list[Index], ids: NDArray[np.int64]) -> BatchOrder:
        """A batch, each of whose samples has its own turn, and the generation that the schedule says."""
        draws = self._counts.add(ids)
        plain = all(type(index) is int for index in indices)
        order = unplanned_order(self._epoch, step, indices, ids, plain=plain)
        order = self._with_turns(order, self._epoch if draws is None else self._epoch + draws * NEXT_DRAW)
        if self._refresh is None:
            return order
        turn = self._epoch
        if self._endless:  # Its passes are the epochs.
            turn += seen * self._share.world // max(1, self._refresh.size)
        generations = self._refresh.generations(ids, turn)
        fresh = generations == turn
        if draws is not None and not self._endless:
            fresh &= draws == 0
        return order._replace(generations=generations, fresh=fresh)

    def _with_turns(self, order: BatchOrder, turns: int | NDArray[np.int64]) -> BatchOrder:
        """The order with these turns, made those of this rank."""
        rank, world = self._share
        if world > 1:
            turns = self._epoch + (turns // NEXT_DRAW * world + rank) * NEXT_DRAW
        return order._replace(turns=turns, batch_turn=order.epoch + rank * NEXT_DRAW)


class _Reached(NamedTuple):
    """Where a sampler stands after a batch of the samples `ids`."""

    seen: int
    state: object
    ids: NDArray[np.int64]
    digest: int | None


def _integer(index: Index) -> int:
    """An index as a Python integer, whichever integer type it is."""
    with suppress(TypeError):
        if not isinstance(index, bool):
            return operator.index(index)
    raise ArgumentError(
        f"reuse= needs a sampler that yields integers; this one yielded {index!r}. "
        "A sample that is reused must be known by its index."
    )
