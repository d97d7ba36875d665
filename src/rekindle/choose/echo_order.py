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


class EchoOrder:
    """The same as a function: any stretch of the copies of sources 0 to n − 1.

    Which copies stand in a stretch follows from those due up to `buffer` positions earlier and later.
    """

    def __init__(self, sources: int, factor: float, buffer: int, *, seed: int, turn: int) -> None:
        self._factor, self._buffer, self._seed, self._turn = factor, max(buffer, 1), seed, turn
        self.length = echoed_length(sources, factor)

    def copies(self, start: int, stop: int) -> NDArray[np.int64]:
        """The copies that stand from `start` up to `stop`."""
        first, last = max(0, start - self._buffer), min(self.length, stop + self._buffer)
        due = _delayed(first, last - first, self._buffer, self._seed, self._turn)
        # All copies before these are due before `start`, all copies behind them after `stop`.
        order = first + np.argsort(due, kind="stable")
        return order[start - first : stop - first]

    def sources(self, copies: NDArray[np.int64]) -> NDArray[np.int64]:
        """The source of each of some copies."""
        return _sources_of(copies, self._factor)

    def repeats(self, copies: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """How many copies of the same source come before each, and whether it is the last one."""
        sources, due = self.sources(copies), self._due(copies)
        before = np.zeros(len(copies), dtype=np.int64)
        is_last = np.ones(len(copies), dtype=bool)
        for distance in range(1, -int(-exact_factor(self._factor) // 1)):
            for other, earlier in ((copies - distance, True), (copies + distance, False)):
                same = (other >= 0) & (other < self.length) & (self.sources(other) == sources)
                due_other = self._due(other)
                comes_before = (due_other <= due) if earlier else (due_other < due)
                before += same & comes_before
                is_last &= ~same | comes_before
        return before, is_last

    def _due(self, copies: NDArray[np.int64]) -> NDArray[np.float64]:
        return _due(copies, self._buffer, self._seed, self._turn)


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


def copies_of(source: int, factor: float) -> int:
    """How many copies a source has: ⌊factor⌋ or ⌈factor⌉, evenly spread over the sources."""
    return echoed_length(source + 1, factor) - echoed_length(source, factor)


def _sources(start: int, stop: int, factor: float) -> NDArray[np.int64]:
    """The source of each copy from `start` to `stop`, before they are shuffled."""
    return _sources_of(np.arange(start, stop, dtype=np.int64), factor)


def _sources_of(copies: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    exact = exact_factor(factor)
    # Copy c is of the first source n with ⌊(n+1)·factor⌋ > c.
    sources: NDArray[np.int64] = -(-(copies + 1) * exact.denominator // exact.numerator) - 1
    return sources


def _delayed(start: int, count: int, buffer: int, seed: int, turn: int) -> NDArray[np.float64]:
    """When each copy is due: its own position, delayed by less than `buffer` positions."""
    return _due(np.arange(start, start + count), buffer, seed, turn)


def _due(copies: NDArray[np.int64], buffer: int, seed: int, turn: int) -> NDArray[np.float64]:
    if buffer <= 1:
        return copies.astype(np.float64)
    return copies + buffer * counter_rng.uniforms(seed, copies, turn, counter_rng.Step.ECHO)[:, 0]
