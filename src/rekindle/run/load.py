"""Samples from a data set, with the global generators seeded for each.

Nobody can tell beforehand whether a data set draws random numbers. So it is run as it is; if a generator is
found to have moved, it is seeded from the sample's key from then on, and what was made without is made again.
A data set that draws nothing pays nothing, and one that does pays for the generators that it uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate, default_convert

from rekindle import keys
from rekindle.global_random import STREAMS, Stream
from rekindle.run.failure import Failure
from rekindle.run.native import is_native
from rekindle.run.sample_costs import Cost, cost

Result = TypeVar("Result")
Turns: TypeAlias = int | Sequence[int] | NDArray[np.int64]


class MadeInVainError(Exception):
    """A generator that was not seeded has moved: what was made with it has to be made again."""


class Wanted(NamedTuple):
    """Samples to load: what the data set is asked for, and what their randomness is keyed by.

    `generations` are for the part of a sample that is kept for reuse, `turns` for the rest. Where nothing is
    reused, they are the same.
    """

    seed: int
    epoch: int
    step: int
    indices: list[Any]
    ids: Sequence[int] | NDArray[np.int64]
    generations: Turns
    turns: Turns


def rows_of(turns: Turns, rows: slice) -> Turns:
    """The turns of some rows, where one number stands for all."""
    return turns if isinstance(turns, int) else turns[rows]


class SampleLoader:
    """Loads samples, batches and collations of one data set, all as functions of their keys.

    `alone` makes a context in which no other thread uses the global generators, and after which they are as
    they were; a worker process needs none. `watch` is told the row that is being made, if it is given. A data
    set that never `draws` from those generators (and says so) is left alone with them.
    """

    def __init__(
        self,
        dataset: Any,
        alone: Callable[[tuple[Stream, ...]], AbstractContextManager[None]] | None = None,
        watch: Callable[[int], None] | None = None,
        draws: bool = True,
    ) -> None:
        self.dataset = dataset
        self.seconds = 0.0  # spent in the data set since the caller last set it to zero
        self.costs: list[Cost] = []  # of single samples, as far as they were timed; emptied by the caller
        self._alone = alone or (lambda _: nullcontext())
        self._watch = watch
        self._moving: tuple[Stream, ...] = ()
        self._native = is_native(dataset)
        self._streams = STREAMS if draws and not getattr(dataset, "draws_nothing", False) else ()
        self._settled = not self._streams
        self._marks: dict[Stream, object] = {}  # where generators stood that are not known to move

    @property
    def quiet(self) -> bool:
        """Whether the data set has not drawn anything so far."""
        return self._settled and not self._moving

    def load(
        self,
        wanted: Wanted,
        *,
        stop_at_failure: bool,
        careful: bool = False,
        timed: bool = False,
        into: NDArray[Any] | None = None,
    ) -> list[Any]:
        """The wanted samples; a Failure in the place of each that raised (the last, if told to stop).

        `careful` makes one sample after the other known to `watch` while it is made; `timed` adds the cost of
        each to `costs`. With `into`, a native data set writes each image to its row there, and what comes
        back are the labels.
        """
        one, together = self._ways(wanted, into)
        before = len(self.costs)
        if timed:
            one = self._timed(one, wanted.indices)

        def attempt(marks: dict[Stream, object]) -> list[Any]:
            del self.costs[before:]
            if not (self._moving or careful or timed or not self._settled):
                try:
                    return together()
                except MadeInVainError:
                    raise
                except Exception:  # Found again, with its row, in what follows.
                    pass
            return self._one_by_one(wanted, one, marks, stop_at_failure, careful)

        return self._run(attempt)

    def _timed(self, one: Callable[[int], Any], indices: list[Any]) -> Callable[[int], Any]:
        def timed(row: int) -> Any:
            started = time.perf_counter()
            try:
                sample = one(row)
            except Exception as error:
                self.costs.append(cost(self.dataset, indices[row], Failure(error), 0))
                raise
            seconds = time.perf_counter() - started
            self.costs.append(cost(self.dataset, indices[row], sample, seconds))
            return sample

        return timed

    def _ways(
        self, wanted: Wanted, into: NDArray[Any] | None
    ) -> tuple[Callable[[int], Any], Callable[[], list[Any]]]:
        """How to make the sample of a row, and how to make all at once."""
        dataset, indices = self.dataset, wanted.indices
        if not self._native:
            return lambda row: dataset[indices[row]], lambda: [dataset[index] for index in indices]
        numbers = keys.uniforms(wanted.seed, wanted.ids, wanted.generations, count=dataset.uniforms)

        def one(row: int) -> Any:
            if into is None:
                return dataset.sample(indices[row], numbers[row])
            return dataset.write(indices[row], numbers[row], into[row])

        if into is not None and hasattr(dataset, "write_many"):
            return one, lambda: dataset.write_many(indices, numbers, into)
        return one, lambda: [one(row) for row in range(len(indices))]

    def _one_by_one(
        self,
        wanted: Wanted,
        one: Callable[[int], Any],
        marks: dict[Stream, object],
        stop_at_failure: bool,
        careful: bool,
    ) -> list[Any]:
        seeders = self._seeders(wanted)
        watch = self._watch if careful else None
        samples: list[Any] = []
        for row in range(len(wanted.indices)):
            if watch is not None:
                watch(row)
            for seed in seeders:
                seed(row)
            try:
                samples.append(one(row))
            except MadeInVainError:
                raise
            except Exception as error:
                samples.append(Failure(error))
                if stop_at_failure:
                    break
            # Most data sets that draw at all do so in their first sample: little is made in vain.
            if row == 0 and self._moved(marks):
                raise MadeInVainError
        return samples

    def _seeders(self, wanted: Wanted) -> list[Callable[[int], None]]:
        if not self._moving:
            return []
        seeds = keys.seeds(wanted.seed, wanted.ids, wanted.generations)
        return [stream.seeder(seeds) for stream in self._moving]

    def load_together(self, wanted: Wanted) -> Any:
        """What the data set's `__getitems__` gives for all of the indices at once."""
        return self._for_batch(wanted, lambda: self.dataset.__getitems__(wanted.indices))

    def call(self, function: Callable[[Any], Any], wanted: Wanted, argument: Any) -> Any:
        """What a function of the batch gives, such as the user's collate function."""
        if function in DRAW_NOTHING:
            return function(argument)
        return self._for_batch(wanted, lambda: function(argument))

    def _for_batch(self, wanted: Wanted, action: Callable[[], Result]) -> Result:
        def attempt(_: dict[Stream, object]) -> Result:
            if self._moving:
                seeds = keys.seeds(wanted.seed, wanted.step, wanted.epoch, keys.Step.BATCH)
                for stream in self._moving:
                    stream.seeder(seeds)(0)
            return action()

        return self._run(attempt)

    def _run(self, attempt: Callable[[dict[Stream, object]], Result]) -> Result:
        """What an attempt gives once no generator moves that was not seeded for it."""
        with self._alone(self._streams):
            started = time.perf_counter()
            try:
                while True:
                    still = [stream for stream in self._streams if stream not in self._moving]
                    marks = self._marks = {stream: stream.mark() for stream in still}
                    try:
                        result = attempt(marks)
                    except MadeInVainError:
                        continue
                    except Exception:
                        if self._moved(marks):
                            continue
                        raise
                    if not self._moved(marks):
                        self._settled = True
                        return result
            finally:
                self.seconds += time.perf_counter() - started

    def _moved(self, marks: dict[Stream, object]) -> bool:
        moved = tuple(stream for stream, mark in marks.items() if stream.mark() != mark)
        self._moving += moved
        return bool(moved)


DRAW_NOTHING = (default_collate, default_convert)


@contextmanager
def generators_kept(streams: tuple[Stream, ...]) -> Iterator[None]:
    """A context after which these generators are as they were before."""
    states = [stream.save() for stream in streams]
    try:
        yield
    finally:
        for stream, state in zip(streams, states, strict=True):
            stream.restore(state)
