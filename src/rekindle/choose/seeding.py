"""What is seeded with what: the loader itself, and its workers in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch

from rekindle.choose.order_kind import OrderKind
from rekindle.choose.position import IterablePosition, Position
from rekindle.choose.sampler_state import KeptParts, WorkerSeeds, between_epochs
from rekindle.core import counter_rng


class DrawnSeed(int):
    """A seed that nobody gave. Frameworks that re-create a loader from its attributes give it to the new one,
    which is to know that: a state brings a seed of its own then, and each of several processes has another.
    """


def draw_seed(put_back: bool) -> int:
    """A seed from torch's global generator, which is put back if its numbers belong to a sampler."""
    kept = torch.default_generator.get_state()
    seed = int(torch.empty((), dtype=torch.int64).random_())
    if put_back:
        torch.default_generator.set_state(kept)
    return seed


@lru_cache(maxsize=8)
def worker_seed(seed: int, epoch: int) -> int:
    """What workers are seeded with in an epoch, in place of the number that torch would draw."""
    return int(counter_rng.seeds(seed, 0, epoch, counter_rng.Step.STREAM)[0] >> np.uint64(1))


def start_iterable(
    position: Position, seed: int, workers: int, generator: torch.Generator | None
) -> IterablePosition:
    """Where each worker of an iterable dataset begins, with the seed that torch would draw for them.

    The seed stays in the position, so that a resumed epoch starts alike.
    """
    known = position.iterable
    if known is not None and known.generator is not None and generator is not None:
        generator.set_state(known.generator)
    if known is None or known.made is None:
        if generator is None:
            drawn = worker_seed(seed, position.epoch)
        else:
            drawn = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
        state = None if generator is None else generator.get_state()
        made = (0,) * max(1, workers)
        if known is None or known.datasets is None or len(known.datasets) != len(made):
            known = IterablePosition(state, drawn, made)
        else:
            known = replace(known, generator=state, base_seed=drawn, made=made)
        position.iterable = known
    return known


def before_an_epoch(
    position: Position,
    order: OrderKind,
    sampler: object,
    generator: torch.Generator | None,
    seeds: WorkerSeeds,
    kept: Callable[[], KeptParts],
) -> Position:
    """The position between two epochs, with what the next one will draw from."""
    if order is OrderKind.SAMPLER and position.sampler_state is None:
        resume = between_epochs(sampler, generator, seeds, kept(), ended=position.epoch > 0)
        return Position(position.epoch, sampler_state=resume, copies=position.copies)
    if order is OrderKind.ITERABLE and generator is not None:
        known = position.iterable or IterablePosition()
        if known.generator is None:
            return Position(position.epoch, iterable=replace(known, generator=generator.get_state()))
    return position
