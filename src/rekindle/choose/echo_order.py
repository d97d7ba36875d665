"""The order of repeated samples or batches: data echoing.

Choi et al., "Faster neural network training with data echoing", 2019. The output of a stage is repeated
`factor` times, and a buffer behind it shuffles the repeats. Each copy is delayed by a random number of
positions below `buffer`, so its source has to be kept no longer than that. The order is computed from numbers
alone: nothing has to be loaded to know it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.draws import earlier_occurrences
from rekindle.choose.plan import EpochPlan, constant
from rekindle.choose.refresh_schedule import exact_factor
from rekindle.core import counter_rng

_BLOCK = 1024


class Echoes(NamedTuple):
    """Copies in the order of training: the source of each, and how many of its copies come before."""

    sources: NDArray[np.int64]
    repeats: NDArray[np.int64]


def echoed_length(sources: int, factor: float) -> int:
    """How many copies so many sources have in all."""
    return int(sources * exact_factor(factor))


def echoed(sources: int, factor: float, buffer: int, *, seed: int, turn: int) -> Echoes:
    """All copies of sources 0 to n − 1.

    >>> echoed(3, factor=1.5, buffer=1, seed=0, turn=0).sources.tolist()
    [0, 1, 1, 2]
    """
    copies = _sources(0, echoed_length(sources, factor), factor)
    order = np.argsort(_delayed(0, len(copies), buffer, seed, turn), kind="stable")
    ordered = copies[order]
    return Echoes(ordered, earlier_occurrences(ordered))


def echoed_stream(factor: float, buffer: int, *, seed: int, turn: int) -> Iterator[tuple[int, int]]:
    """The same for endless sources: yields (source, how many of its copies came before)."""
    seen: dict[int, int] = {}
    start, block = 0, max(_BLOCK, buffer)
    waiting, due = np.empty(0, dtype=np.int64), np.empty(0)
    while True:
        waiting = np.concatenate([waiting, _sources(start, start + block, factor)])
        due = np.concatenate([due, _delayed(start, block, buffer, seed, turn)])
        start += block
        order = np.argsort(due, kind="stable")
        ready = int(np.searchsorted(due[order], start))  # No later copy is due before these.
        for source in waiting[order[:ready]].tolist():
            repeat = seen.get(source, 0)
            seen[source] = repeat + 1
            yield source, repeat
        rest = np.sort(order[ready:])
        waiting, due = waiting[rest], due[rest]
        first = int(waiting.min(initial=_sources(start, start + 1, factor)[0]))
        seen = {source: count for source, count in seen.items() if source >= first}


def plan_echo(
    *,
    size: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    batch_size: int,
    drop_last: bool,
    factor: float,
    buffer: int,
) -> EpochPlan:
    """A plan with repeated samples: the cached part is computed once an epoch, the rest for every repeat."""
    ids = counter_rng.permutation(size, seed, epoch) if shuffle else np.arange(size, dtype=np.int64)
    return echo_plan(
        ids, epoch=epoch, seed=seed, batch_size=batch_size, drop_last=drop_last, factor=factor, buffer=buffer
    )


def echo_plan(
    ids: NDArray[np.int64],
    *,
    epoch: int,
    seed: int,
    batch_size: int,
    drop_last: bool,
    factor: float,
    buffer: int,
) -> EpochPlan:
    """The same for samples in a given order, in which some may occur more than once."""
    chosen = ids[echoed(len(ids), factor, buffer, seed=seed, turn=epoch).sources]
    repeats = earlier_occurrences(chosen)
    return EpochPlan(
        epoch=epoch,
        ids=chosen,
        generations=constant(np.int64(epoch), chosen),
        turns=epoch + repeats * counter_rng.NEXT_DRAW,
        fresh=repeats == 0,
        weights=constant(np.float32(1), chosen),
        batch_size=batch_size,
        drop_last=drop_last,
        last_uses=earlier_occurrences(chosen[::-1])[::-1] == 0,
    )


def copies_of(source: int, factor: float) -> int:
    """How many copies a source has: ⌊factor⌋ or ⌈factor⌉, evenly spread over the sources."""
    return echoed_length(source + 1, factor) - echoed_length(source, factor)


def _sources(start: int, stop: int, factor: float) -> NDArray[np.int64]:
    """The source of each copy from `start` to `stop`, before they are shuffled."""
    exact = exact_factor(factor)
    # Copy c is of the first source n with ⌊(n+1)·factor⌋ > c.
    copies = np.arange(start + 1, stop + 1, dtype=np.int64)
    return -(-copies * exact.denominator // exact.numerator) - 1


def _delayed(start: int, count: int, buffer: int, seed: int, turn: int) -> NDArray[np.float64]:
    """When each copy is due: its own position, delayed by less than `buffer` positions."""
    positions = np.arange(start, start + count)
    if buffer <= 1:
        return positions.astype(np.float64)
    return positions + buffer * counter_rng.uniforms(seed, positions, turn, counter_rng.Step.ECHO)[:, 0]
