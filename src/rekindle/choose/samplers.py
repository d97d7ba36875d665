"""The order that a user's own sampler gives, exactly as torch would follow it, and resumable."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from rekindle.choose.orders import BatchOrder, EndOfEpoch
from rekindle.choose.plan import EpochPlan
from rekindle.choose.planned_sampler import tell_epoch
from rekindle.choose.refresh import Refresh
from rekindle.errors import ArgumentError, StateError
from rekindle.global_random import STREAMS

_RECENT = 256  # samples


class SamplerOrders:
    """An epoch of a sampler (or batch sampler) that is not ours; an iterator of orders.

    Torch's order depends on the generators at the moment an epoch begins, so what they were is kept, and a
    resumed epoch begins from there: the sampler's indices are drawn again and those that were used already
    are passed over, without loading a sample. A sampler with `state_dict` and `load_state_dict` is resumed
    by these instead.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        batched: bool,
        epoch: int,
        generator: torch.Generator | None,
        base_seed: int | None = None,
        resume: dict[str, Any] | None = None,
        without: Collection[int] = (),
        keep_recent: bool = False,
        refresh: Refresh | None = None,
        plan_of: Callable[[NDArray[np.int64]], EpochPlan] | None = None,
    ) -> None:
        """`base_seed` is what persistent workers were seeded with already: torch draws no other.

        `without` are steps that were handed over before, out of order. `keep_recent` has each order name the
        samples before it, which may stand in for one that fails. `refresh` says when samples that are reused
        are made anew. `plan_of` makes a plan of the samples of an epoch: all are
        drawn at once then.
        """
        tell_epoch(sampler, epoch)
        self._refresh, self._plan_of = refresh, plan_of
        self._plan: EpochPlan | None = None
        self._sampler: Any = sampler
        self._batched, self._epoch, self._generator = batched, epoch, generator
        self._without = frozenset(without)
        self._stateful = _stateful_part(sampler)
        self._first_state: Any = None  # the sampler's, when an epoch began that is planned as a whole
        self._recent: deque[Any] | None = deque(maxlen=_RECENT) if keep_recent else None
        self._ended = False
        self._step = self._seen = 0
        self._draws_seed = base_seed is None
        self.base_seed = 0 if base_seed is None else base_seed
        if resume is not None and resume["step"] is None:
            self._go_back_to(resume)
            resume = None
        self._start = generators_of(sampler, generator)
        if resume is None:
            self._iterator = self._begin()
        else:
            self._step, self._seen, self._start = resume["step"], resume["seen"], resume["start"]
            self.base_seed, self._draws_seed = resume["base_seed"], resume["draws_seed"]
            self._iterator = self._resume(resume["sampler"])
        # What resuming after so many batches takes, for all that are not handed over yet.
        self._after: dict[int, tuple[int, Any]] = {}
        self._remember()

    def _begin(self) -> Iterator[Any]:
        """A new pass over the sampler, drawing from the generators what torch draws, in its order."""
        iterator = self._iterated()
        if self._draws_seed:
            self.base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self._generator))
        return iterator

    def _iterated(self) -> Iterator[Any]:
        if self._plan_of is None:
            return iter(self._sampler)
        self._first_state = self._sampler_state()
        # What a batch sampler leaves out at the end is the plan's to leave out.
        samples = self._sampler.sampler if self._batched else self._sampler
        return self._planned(iter(samples), self._plan_of)

    def _planned(
        self, iterator: Iterator[Any], plan_of: Callable[[NDArray[np.int64]], EpochPlan]
    ) -> Iterator[Any]:
        """The batches of a plan, of all that is drawn."""
        drawn = np.array([_whole_number(index) for index in iterator], dtype=np.int64)
        plan = self._plan = plan_of(drawn)
        for step in range(plan.steps):
            indices = plan.ids[plan.rows(step)].tolist()
            yield indices if self._batched else indices[0]

    def _go_back_to(self, between: dict[str, Any]) -> None:
        """Put the generators and the sampler where they were when a state was saved between two epochs."""
        set_generators(between["start"], self._sampler, self._generator)
        if self._stateful is not None and between["sampler"] is not None:
            self._stateful.load_state_dict(between["sampler"])
            for _ in self._sampler:  # Nothing is left of that epoch; asked again, it begins the next.
                pass

    def _resume(self, state: Any) -> Iterator[Any]:
        if self._stateful is not None and state is not None:
            self._stateful.load_state_dict(state)
            done = 0 if self._plan_of is None else self._step
            return islice(self._iterated(), done, None)
        now = generators_of(self._sampler, self._generator)
        set_generators(self._start, self._sampler, self._generator)
        iterator = self._begin()
        for drawn in islice(iterator, self._step):
            if self._recent is not None:
                self._recent.extend(self._indices(drawn))
        if self._step == 0 and not _same(now, generators_of(self._sampler, self._generator)):
            # Most samplers draw their order when they are asked for the first index: let that be now.
            iterator = chain(list(islice(iterator, 1)), iterator)
        # The global ones are not ours to move; those of the loader and the sampler go on from here.
        set_generators({name: now[name] for name in now if name in GLOBAL}, self._sampler, None)
        return iterator

    def _indices(self, drawn: Any) -> list[Any]:
        """What a batch consists of; in whole numbers, if they say what is kept of which sample."""
        indices = list(drawn) if self._batched else [drawn]
        return indices if self._refresh is None else [_whole_number(index) for index in indices]

    def _remember(self) -> None:
        state = self._sampler_state() if self._plan_of is None else self._first_state
        self._after[self._step] = self._seen, state

    def _sampler_state(self) -> Any:
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def resume_after(self, steps: int) -> dict[str, Any]:
        """What it takes to go on after so many batches of this epoch."""
        seen, state = self._after[steps]
        return {
            "step": steps,
            "seen": seen,
            "start": self._start,
            "base_seed": self.base_seed,
            "draws_seed": self._draws_seed,
            "sampler": state,
        }

    def forget_before(self, steps: int) -> None:
        """Promise not to ask about fewer batches than these."""
        self._after = {step: what for step, what in self._after.items() if step >= steps}

    def __iter__(self) -> SamplerOrders:
        return self

    def __next__(self) -> BatchOrder | EndOfEpoch:
        while not self._ended:
            try:
                drawn = next(self._iterator)
            except StopIteration:
                self._ended = True
                return EndOfEpoch(self._epoch)
            indices = self._indices(drawn)
            step, seen = self._step, self._seen
            self._step += 1
            self._seen += len(indices)
            self._remember()
            recent = [] if self._recent is None else list(self._recent)
            if self._recent is not None:
                self._recent.extend(indices)
            if step not in self._without:
                plain = all(type(index) is int for index in indices)
                ids = _as_integers(indices, seen)
                return BatchOrder(
                    self._epoch, step, indices, ids, plain, self._plan, recent, refresh=self._refresh
                )
        raise StopIteration


def between_epochs(sampler: Any, generator: torch.Generator | None, ended: bool) -> dict[str, Any]:
    """What it takes to begin the next epoch of a sampler elsewhere, or, if none has `ended`, the first."""
    stateful = _stateful_part(sampler) if ended else None
    start = generators_of(sampler, generator)
    return {
        "step": None,
        "start": {name: start[name] for name in start if name not in GLOBAL},
        "sampler": None if stateful is None else copy.deepcopy(stateful.state_dict()),
    }


def _stateful_part(sampler: Any) -> Any:
    """The sampler, or the one that torch's batch sampler wraps, if it can save and load its state."""
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    stateful = hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")
    return sampler if stateful else None


def _whole_number(index: Any) -> int:
    """An index as Python's integer, whichever kind of whole number it is."""
    with suppress(TypeError):
        if not isinstance(index, bool):
            return operator.index(index)
    raise ArgumentError(
        f"reuse= needs a sampler that gives whole numbers; this one gave {index!r}. "
        "A sample that is reused must be known by its index."
    )


def _as_integers(indices: list[Any], seen: int) -> NDArray[np.int64]:
    try:
        return np.fromiter(map(operator.index, indices), dtype=np.int64, count=len(indices))
    except (TypeError, OverflowError):
        return np.arange(seen, seen + len(indices), dtype=np.int64)


GLOBAL = frozenset(stream.name for stream in STREAMS)


def generators_of(sampler: Any, generator: torch.Generator | None) -> dict[str, torch.Tensor]:
    """The state of each generator that a sampler may draw from: the loader's, its own, or the global ones."""
    states = {}
    if generator is not None:
        states["generator"] = generator.get_state()
    own = _generator_within(sampler)
    if own is not None and own is not generator:
        states["sampler_generator"] = own.get_state()
    return states or {stream.name: stream.save_tensor() for stream in STREAMS}


def set_generators(states: dict[str, torch.Tensor], sampler: Any, generator: torch.Generator | None) -> None:
    """Put generators where they were."""
    own = _generator_within(sampler)
    if generator is not None and "generator" in states:
        generator.set_state(states["generator"])
    if own is not None and "sampler_generator" in states:
        own.set_state(states["sampler_generator"])
    for stream in STREAMS:
        if stream.name in states:
            stream.restore_tensor(states[stream.name])


def _same(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> bool:
    pairs = [(some[name], others[name]) for name in some]
    return all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)


def check_generator(name: Any, state: Any) -> None:
    """Raise StateError unless `set_generators` will accept this state."""
    named = {stream.name: stream for stream in STREAMS}
    try:
        if not isinstance(state, torch.Tensor):
            raise TypeError(f"expected a tensor, but got {state!r}")
        if name in ("generator", "sampler_generator"):
            torch.Generator().set_state(state)
        else:
            named[name].check_tensor(state)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise StateError(f"sampler: the state of generator {name!r} cannot be used: {error}") from error


def _generator_within(sampler: Any) -> torch.Generator | None:
    """The generator that a sampler, or one that it wraps, was given."""
    for _ in range(4):
        own = getattr(sampler, "generator", None)
        if isinstance(own, torch.Generator):
            return own
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    return None
