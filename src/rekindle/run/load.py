"""Samples from a data set, with the global generators seeded for each.

Nobody can tell beforehand whether a data set draws random numbers. So it is run as it is; if a generator is
found to have moved, it is seeded from the sample's key from then on, and what was made without is made again.
A data set that draws nothing pays nothing, and one that does pays for the generators that it uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle import keys
from rekindle.global_random import STREAMS, Stream

Result = TypeVar("Result")


class _MadeInVainError(Exception):
    """A generator that was not seeded has moved: what was made with it has to be made again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Samples to load: what the data set is asked for, and what their randomness is keyed by."""

    seed: int
    epoch: int
    step: int
    indices: list[Any]
    ids: Sequence[int] | NDArray[np.int64]
    generations: int | Sequence[int] | NDArray[np.int64]

    def batch_seed(self) -> int:
        """The seed for what concerns the whole batch."""
        return int(keys.seeds(self.seed, self.step, self.epoch, keys.Step.BATCH)[0])


@dataclass(frozen=True, slots=True)
class Failure:
    """What stands in a sample's place if making it raised an exception."""

    error: Exception


def is_native(dataset: Any) -> bool:
    """Whether the loader draws a data set's random numbers for it (see `rekindle.images`)."""
    return getattr(dataset, "uniforms", None) is not None and hasattr(dataset, "write")


class SampleLoader:
    """Loads samples, batches and collations of one data set, all as functions of their keys.

    `alone` makes a context in which no other thread uses the global generators, and after which they are as
    they were; a worker process needs none. `watch` is told the row that is being made, if it is given.
    """

    def __init__(
        self,
        dataset: Any,
        alone: Callable[[tuple[Stream, ...]], AbstractContextManager[None]] | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> None:
        self.dataset = dataset
        self.seconds = 0.0  # spent in the data set since the caller last set it to zero
        self._alone = alone or (lambda _: nullcontext())
        self._watch = watch
        self._native = is_native(dataset)
        if self._native:
            from rekindle.prepare.draw import uniforms  # Compiled code, which other data sets need not load.

            self._draw = uniforms
        self._moving: tuple[Stream, ...] = ()
        # Such a data set is believed. In threads there is no telling who else has moved a generator.
        self._draws_nothing = bool(getattr(dataset, "draws_nothing", False))
        self._settled = self._draws_nothing

    def load(
        self,
        wanted: Wanted,
        *,
        stop_at_failure: bool,
        careful: bool = False,
        into: NDArray[Any] | None = None,
    ) -> list[Any]:
        """The wanted samples; a Failure in the place of each that raised (the last, if told to stop).

        `careful` makes one sample after the other known to `watch` while it is made. With `into`, a native
        data set writes each image to its row there, and what comes back are the labels.
        """
        started = time.perf_counter()
        one, together = self._ways(wanted, into)

        def attempt(marks: dict[Stream, object]) -> list[Any]:
            if not (self._moving or careful or not self._settled):
                try:
                    return together()
                except Exception:  # Found again, with its row, in what follows.
                    pass
            return self._one_by_one(wanted, one, marks, stop_at_failure)

        samples = self._run(attempt)
        self.seconds += time.perf_counter() - started
        return samples

    def _ways(
        self, wanted: Wanted, into: NDArray[Any] | None
    ) -> tuple[Callable[[int], Any], Callable[[], list[Any]]]:
        """How to make the sample of a row, and how to make all at once."""
        dataset, indices = self.dataset, wanted.indices
        if not self._native:
            return lambda row: dataset[indices[row]], lambda: [dataset[index] for index in indices]
        numbers = self._draw(wanted.seed, wanted.ids, wanted.generations, count=dataset.uniforms)

        def one(row: int) -> Any:
            if into is None:
                return dataset.sample(indices[row], numbers[row])
            return dataset.write(indices[row], numbers[row], into[row])

        if into is not None and hasattr(dataset, "write_many"):
            return one, lambda: dataset.write_many(indices, numbers, into)
        return one, lambda: [one(row) for row in range(len(indices))]

    def _one_by_one(
        self, wanted: Wanted, one: Callable[[int], Any], marks: dict[Stream, object], stop_at_failure: bool
    ) -> list[Any]:
        seeds = self._seeds(wanted)
        samples: list[Any] = []
        for row in range(len(wanted.indices)):
            if self._watch is not None:
                self._watch(row)
            if seeds is not None:
                for stream in self._moving:
                    stream.seed(seeds[row])
            try:
                samples.append(one(row))
            except Exception as error:
                samples.append(Failure(error))
                if stop_at_failure:
                    break
            # Most data sets that draw at all do so in their first sample: little is made in vain.
            if row == 0 and self._moved(marks):
                raise _MadeInVainError
        return samples

    def _seeds(self, wanted: Wanted) -> list[int] | None:
        if not self._moving:
            return None
        seeds: list[int] = keys.seeds(wanted.seed, wanted.ids, wanted.generations).tolist()
        return seeds

    def load_together(self, wanted: Wanted) -> Any:
        """What the data set's `__getitems__` gives for all of the indices at once."""
        return self._for_batch(wanted, lambda: self.dataset.__getitems__(wanted.indices))

    def call(self, function: Callable[[Any], Any], wanted: Wanted, argument: Any) -> Any:
        """What a function of the batch gives, such as the user's collate function."""
        return self._for_batch(wanted, lambda: function(argument))

    def _for_batch(self, wanted: Wanted, action: Callable[[], Result]) -> Result:
        def attempt(_: dict[Stream, object]) -> Result:
            if self._moving:
                seed = wanted.batch_seed()
                for stream in self._moving:
                    stream.seed(seed)
            return action()

        started = time.perf_counter()
        result = self._run(attempt)
        self.seconds += time.perf_counter() - started
        return result

    def _run(self, attempt: Callable[[dict[Stream, object]], Result]) -> Result:
        """What an attempt gives once no generator moves that was not seeded for it."""
        if self._draws_nothing:
            return attempt({})
        with self._alone(self._moving if self._settled else STREAMS):
            while True:
                marks = {stream: stream.mark() for stream in STREAMS if stream not in self._moving}
                try:
                    result = attempt(marks)
                except _MadeInVainError:
                    continue
                except Exception:
                    if self._moved(marks):
                        continue
                    raise
                if not self._moved(marks):
                    self._settled = True
                    return result

    def _moved(self, marks: dict[Stream, object]) -> bool:
        moved = tuple(stream for stream, mark in marks.items() if stream.mark() != mark)
        self._moving += moved
        return bool(moved)


@contextmanager
def generators_kept(streams: tuple[Stream, ...]) -> Iterator[None]:
    """A context after which these generators are as they were before."""
    states = [stream.save() for stream in streams]
    try:
        yield
    finally:
        for stream, state in zip(streams, states, strict=True):
            stream.restore(state)
