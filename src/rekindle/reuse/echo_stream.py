"""Echoes of an iterable data set: repeats what it gives, in every worker by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

from rekindle import keys
from rekindle.choose.echo import copies_of, echoed_stream


class Echoed(NamedTuple):
    """A sample, and whether it is the first time that it comes out."""

    sample: Any
    fresh: bool


class EchoStream(IterableDataset[Echoed]):
    """What an iterable data set gives, each `factor` times, `buffer` places apart at most.

    Each repeat is a copy of what is kept: what the data set gave, finished `anew` by `final_transform`, or
    what that made of it once.
    """

    def __init__(
        self,
        dataset: Any,
        factor: float,
        buffer: int,
        final_transform: Callable[[Any], Any] | None,
        anew: bool = True,
    ) -> None:
        self.dataset, self.factor, self.buffer = dataset, factor, buffer
        self._once = None if anew else final_transform
        self._each_time = final_transform if anew else None

    def __iter__(self) -> Iterator[Echoed]:
        # What this worker was seeded with in this epoch: no other worker or epoch has the same.
        seed = int(keys.seeds(torch.initial_seed() >> 1, 0, 0, keys.Step.ECHO)[0] >> 1)
        return self._echoes(iter(self.dataset), echoed_stream(self.factor, self.buffer, seed=seed, turn=0))

    def _echoes(self, source: Iterator[Any], order: Iterator[tuple[int, int]]) -> Iterator[Echoed]:
        kept: dict[int, Any] = {}
        read, ended = 0, False
        for number, repeat in order:
            while not ended and read <= number:
                try:
                    sample = next(source)
                except StopIteration:
                    ended = True
                else:
                    kept[read] = sample if self._once is None else self._once(sample)
                    read += 1
            if number in kept:
                last = repeat + 1 == copies_of(number, self.factor)
                sample = kept.pop(number) if last else copy.deepcopy(kept[number])
                finished = sample if self._each_time is None else self._each_time(sample)
                yield Echoed(finished, repeat == 0)
            if ended and not kept:
                return


def take(iterator: Iterator[Any], count: int) -> tuple[list[Any], list[bool] | None]:
    """The next samples of a stream, and which of them are no repeats (None if none are)."""
    taken = list(islice(iterator, count))
    if taken and type(taken[0]) is Echoed:
        return [echo.sample for echo in taken], [echo.fresh for echo in taken]
    return taken, None
