"""How far a loader has got."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import torch

from rekindle.choose.sampler_state import SamplerState
from rekindle.choose.shard import EpochStart
from rekindle.choose.user_samplers import SamplerOrders

# Of each worker's copy of a map-style dataset that has a state: what its `state_dict` gave, pickled, between
# our own processes. A string says why it could not be had; None is not known.
CopyStates: TypeAlias = tuple[bytes | str | None, ...]


class DatasetState(NamedTuple):
    """Where a worker's copy of an iterable dataset stands.

    `value` is what the dataset's own `state_dict` gave, pickled, between our own processes; None is a dataset
    that has not begun, and a string says why its state could not be had. Behind it, `passes` are the batches
    that were read in the pass it belongs to and, if that is over, in those after it. If these are `derived`
    from another rank's, it is an error if the last pass has fewer.
    """

    value: bytes | str | None
    passes: tuple[int, ...] = (0,)
    derived: bool = False


def later(known: DatasetState, taken: bytes | str | None) -> DatasetState | None:
    """Where a dataset stands a batch later. `taken` is its state; empty: not taken now; None: it has none."""
    if taken is None:
        return None
    return DatasetState(taken) if taken else known._replace(passes=(*known.passes[:-1], known.passes[-1] + 1))


def with_copy(states: CopyStates, worker: int, state: bytes | str | None) -> CopyStates:
    """The states of all copies once that of a worker is this one."""
    return (*states[:worker], state, *states[worker + 1 :])


@dataclass(frozen=True)
class IterablePosition:
    """How far the workers of an iterable dataset have got in their parts of it."""

    generator: torch.Tensor | None = None  # the state of the loader's generator when the epoch began
    base_seed: int = 0  # what the workers are seeded with
    made: tuple[int, ...] | None = None  # batches of each worker so far; None between two epochs
    turn: int = 0  # the worker whose batch is next
    datasets: tuple[DatasetState | None, ...] | None = None  # of each worker, where datasets have a state
    is_live: bool = False  # the workers' datasets stand where `datasets` says: nothing is to be loaded
    # Where an epoch goes on that other ranks began: what these had left, all of it, pickled as `value` is.
    begun: bytes | None = None

    def after_a_batch(self, worker: int, state: DatasetState | None) -> IterablePosition:
        """The position once a batch of a worker is yielded, behind which its dataset is in this state."""
        made, datasets = self.made, self.datasets
        assert made is not None
        after = (*made[:worker], made[worker] + 1, *made[worker + 1 :])
        if state is not None or datasets is not None:
            known = datasets or (None,) * len(made)
            datasets = (*known[:worker], state, *known[worker + 1 :])
        return replace(self, made=after, turn=(worker + 1) % len(made), datasets=datasets)

    def after_the_end(self) -> IterablePosition | None:
        """What is left of a pass that is over, if its datasets go on with the next: their states."""
        if self.datasets is None:
            return None
        ended = (one and one._replace(passes=(*one.passes, 0)) for one in self.datasets)
        return IterablePosition(datasets=tuple(ended), is_live=True)

    def dataset(self, worker: int) -> DatasetState:
        """Where a worker's dataset stands, as far as it can be known."""
        known = None if self.datasets is None else self.datasets[worker]
        return DatasetState(None, ((self.made or ())[worker],)) if known is None else known


@dataclass
class Position:
    """How far a loader has got.

    `step` batches of `epoch` have been yielded (`ahead` lists those beyond the first gap, which there are
    with `in_order=False`). After the last batch, and before the loop has ended, `step` is the epoch's length.
    In an epoch that was begun by other ranks, or with another batch size, steps are counted from its `start`.
    """

    epoch: int = 0
    step: int = 0
    ahead: frozenset[int] = frozenset()
    sampler: SamplerOrders | None = None  # a user's sampler that an epoch follows
    sampler_state: SamplerState | None = None  # what it takes to resume one
    iterable: IterablePosition | None = None  # of an iterable dataset
    copies: CopyStates | None = None  # of a map-style dataset that has a state
    begun: bool = False  # an epoch goes on from here already
    start: EpochStart | None = None  # where steps are counted from; None: the beginning of the epoch

    def sampler_to_resume(self) -> SamplerState | None:
        """What a user's sampler needs to go on from here; None for an order of our own."""
        return self.sampler_state if self.sampler is None else self.sampler.resume_after(self.step)

    def after_a_batch(self, step: int, *, in_order: bool) -> tuple[int, frozenset[int]]:
        """What `step` and `ahead` are once this batch is yielded, maybe before earlier ones."""
        if in_order:
            return step + 1, self.ahead
        ahead, first = {*self.ahead, step}, self.step
        while first in ahead:
            ahead.remove(first)
            first += 1
        return first, frozenset(ahead)
