"""The order of things that are repeated: data echoing.

Choi et al., "Faster neural network training with data echoing", 2019. What comes out of a stage is repeated
`factor` times, and a buffer behind it shuffles the repeats. Each copy is put off by a random number of places
below `buffer`, so what is behind it has to be kept no longer than that. The order follows from numbers alone:
nothing has to be loaded to know it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rekindle import keys
from rekindle.choose.plan import EpochPlan, same
from rekindle.choose.refresh import exact_factor

_BLOCK = 1024
REPEAT = 1 << 32  # added to a sample's turn for each time that it was repeated before


class Echoes(NamedTuple):
    """Copies in the order in which they come out: which source, and how often it came out before."""

    sources: NDArray[np.int64]
    repeats: NDArray[np.int64]


def length(sources: int, factor: float) -> int:
    """How many copies there are of so many sources."""
    return int(sources * exact_factor(factor))


def echoed(sources: int, factor: float, buffer: int, *, seed: int, turn: int) -> Echoes:
    """All copies of sources 0 … n − 1.

    >>> echoed(3, factor=1.5, buffer=1, seed=0, turn=0).sources.tolist()
    [0, 1, 1, 2]
    """
    copies = _sources(0, length(sources, factor), factor)
    order = np.argsort(_delayed(0, len(copies), buffer, seed, turn), kind="stable")
    ordered = copies[order]
    return Echoes(ordered, _earlier_ones(ordered))


def echoed_stream(factor: float, buffer: int, *, seed: int, turn: int) -> Iterator[tuple[int, int]]:
    """The same for sources without an end: (source, how often it came out before), one after the other."""
    seen: dict[int, int] = {}
    start, block = 0, max(_BLOCK, buffer)
    waiting, due = np.empty(0, dtype=np.int64), np.empty(0)
    while True:
        waiting = np.concatenate([waiting, _sources(start, start + block, factor)])
        due = np.concatenate([due, _delayed(start, block, buffer, seed, turn)])
        start += block
        order = np.argsort(due, kind="stable")
        ready = int(np.searchsorted(due[order], start))  # Nothing later comes out before these.
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
    """A plan whose samples are repeated: the part that is kept is made once an epoch, the rest each time."""
    ids = keys.permutation(size, seed, epoch) if shuffle else np.arange(size, dtype=np.int64)
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
    """The same for samples in a given order, which may have some of them more than once."""
    chosen = ids[echoed(len(ids), factor, buffer, seed=seed, turn=epoch).sources]
    repeats = _earlier_ones(chosen)
    return EpochPlan(
        epoch=epoch,
        ids=chosen,
        generations=same(np.int64(epoch), chosen),
        turns=epoch + repeats * REPEAT,
        fresh=repeats == 0,
        weights=same(np.float32(1), chosen),
        batch_size=batch_size,
        drop_last=drop_last,
        last_uses=_earlier_ones(chosen[::-1])[::-1] == 0,
    )


def copies_of(source: int, factor: float) -> int:
    """How many copies of a source there are: ⌊factor⌋ or ⌈factor⌉, evenly spread."""
    return length(source + 1, factor) - length(source, factor)


def _sources(start: int, stop: int, factor: float) -> NDArray[np.int64]:
    """The source of each copy from `start` to `stop`, in the order in which copies are made."""
    exact = exact_factor(factor)
    # Copy c is of the first source n with ⌊(n+1)·factor⌋ > c.
    copies = np.arange(start + 1, stop + 1, dtype=np.int64)
    return -(-copies * exact.denominator // exact.numerator) - 1


def _delayed(start: int, count: int, buffer: int, seed: int, turn: int) -> NDArray[np.float64]:
    """When each copy comes out: its own place, put off by less than `buffer` places."""
    places = np.arange(start, start + count)
    if buffer <= 1:
        return places.astype(np.float64)
    return places + buffer * keys.uniforms(seed, places, turn, keys.Step.ECHO)[:, 0]


def _earlier_ones(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each value, how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    groups = np.repeat(starts, np.diff(starts, append=len(values)))
    earlier = np.empty(len(values), dtype=np.int64)
    earlier[order] = np.arange(len(values)) - groups
    return earlier
