"""Echoes of an iterable dataset: every worker repeats what its own copy gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch.utils.data import IterableDataset

from rekindle.choose.echo_order import copies_of, echoed_stream
from rekindle.core import counter_rng
from rekindle.core.samples import Sample


class Echoed(NamedTuple):
    """A sample, and whether this is its first use."""

    sample: Sample
    fresh: bool


class EchoStream(IterableDataset[Echoed]):
    """The samples of an iterable dataset, each `factor` times, at most `buffer` samples apart.

    With `transform_each`, repeats are copies of what the dataset gave, and `final_transform` is applied to
    each; otherwise it is applied once, and its result is repeated.
    """

    def __init__(
        self,
        dataset: Iterable[Sample],
        factor: float,
        buffer: int,
        final_transform: Callable[[Sample], Sample] | None,
        transform_each: bool = True,
    ) -> None:
        self.dataset, self.factor, self.buffer = dataset, factor, buffer
        self._once = None if transform_each else final_transform
        self._each_time = final_transform if transform_each else None

    def __iter__(self) -> Iterator[Echoed]:
        # This worker's seed of this epoch: no other worker or epoch has the same.
        seed = int(counter_rng.seeds(torch.initial_seed() >> 1, 0, 0, counter_rng.Step.ECHO)[0] >> 1)
        return self._echoes(iter(self.dataset), echoed_stream(self.factor, self.buffer, seed=seed, turn=0))

    def _echoes(self, source: Iterator[Sample], order: Iterator[tuple[int, int]]) -> Iterator[Echoed]:
        kept: dict[int, Sample] = {}
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
