"""Samples of a dataset, with the generators seeded for each: the global ones and those that it holds.

Each sample is asked for once: who reads on, from whatever, would lose a record. So every generator that the
dataset is not proven to leave alone (`core/analysis/possible_draws.py`) is seeded before each sample. Not so
one that it holds where it keeps things as well: it may decide something by that one, once, which is to be
the same in all workers. When it is seen to draw from such a one, that is seeded as well, and what was loaded
without is asked for again; unless its code shows that it reads on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle.core import compiled_rng, counter_rng
from rekindle.core.analysis.held_generators import HeldGenerator
from rekindle.core.analysis.possible_draws import LongContainers
from rekindle.core.global_rng import GENERATORS, generators_kept
from rekindle.core.interrupts import is_interrupt
from rekindle.core.public_rng import RandomSource, Restore
from rekindle.core.samples import Batch, Index, Sample
from rekindle.prepare.native import as_native
from rekindle.run.bad_samples import FailedSample
from rekindle.run.code_findings import DRAW_NOTHING, CodeFindings, look_into
from rekindle.run.collation import collate
from rekindle.run.sample_timing import NOT_LOADED, Cost, cost

Result = TypeVar("Result")
Turns: TypeAlias = int | Sequence[int] | NDArray[np.int64]
Images: TypeAlias = NDArray[np.uint8 | np.float32]  # the rows of a batch that images are written to
LoadOne: TypeAlias = Callable[[int], Sample]  # the sample of a row
Loaded: TypeAlias = dict[int, Sample]  # by row; a FailedSample for one whose loading has raised
# All samples at once; if one fails, those up to it are noted, not to be asked for again.
LoadAll: TypeAlias = Callable[[Loaded], list[Sample]]
Marks: TypeAlias = dict[RandomSource, object]
Exclusive: TypeAlias = Callable[[tuple[RandomSource, ...]], AbstractContextManager[None]]
OnRow: TypeAlias = Callable[[int], None]
Known: TypeAlias = Callable[[], CodeFindings | None]


class UnseededDrawError(Exception):
    """The dataset has drawn from a generator that was not seeded for it: what it returned is recomputed."""


class LoadRequest(NamedTuple):
    """Samples to load: the indices that the dataset gets, and the keys of their randomness.

    `generations` are for the part of a sample that is cached for reuse, `turns` for the rest, or for all
    of it where nothing is cached; `batch_turn` and `step` for what is drawn for the batch as a whole.
    """

    seed: int
    batch_turn: int
    step: int
    indices: list[Index]
    ids: Sequence[int] | NDArray[np.int64]
    generations: Turns
    turns: Turns

    def rows(self, rows: slice) -> LoadRequest:
        """Only some rows of the request."""
        return self._replace(
            indices=self.indices[rows],
            ids=self.ids[rows],
            generations=rows_of(self.generations, rows),
            turns=rows_of(self.turns, rows),
        )


def rows_of(turns: Turns, rows: slice) -> Turns:
    """The turns of some rows, where one number stands for all."""
    return turns if isinstance(turns, int) else turns[rows]


def load_items(dataset: Any, indices: list[Index], loaded: Loaded) -> list[Sample]:
    """The samples of these indices; if one fails, they are in `loaded` up to that one."""
    samples: list[Sample] = []
    try:
        for index in indices:
            samples.append(dataset[index])  # noqa: PERF401 (They are needed if there is an exception.)
    except Exception as error:
        loaded.update(enumerate([*samples, FailedSample(error)]))
        raise
    return samples


def _once(load_one: LoadOne, loaded: Loaded) -> LoadOne:
    """Loads the sample of a row, or raises its exception, unless that has been done."""

    def load(row: int) -> Sample:
        sample = loaded[row] if row in loaded else load_one(row)
        if type(sample) is FailedSample:
            raise sample.error
        return sample

    return load


class SampleLoader:
    """Loads samples, batches and collations of one dataset, all as functions of their keys.

    `exclusive` makes a context in which no other thread uses the generators, and after which they are as they
    were; in a worker process that matters only for those that the dataset holds. `on_row` is called with the
    row that is being loaded, if the request is a `careful` one. With `draws=False`, the dataset is known not
    to draw from any generator. `collate_fn` is what batches are made with. With `once`, no sample is
    recomputed, and so all generators are seeded for every sample from the first on. `known` is asked at the
    first one for what was found in this dataset before, if that is sure to hold.
    """

    _keeps_parts = False  # of samples, in a cache

    def __init__(
        self,
        dataset: Any,
        exclusive: Exclusive | None = None,
        on_row: OnRow | None = None,
        draws: bool = True,
        collate_fn: object = None,
        once: bool = False,
        known: Known = lambda: None,
    ) -> None:
        self.dataset, self._once, self._known = dataset, once, known
        self._collate_fn = collate_fn
        self.seconds = 0.0  # spent in the dataset since the caller last set it to zero
        self.costs: list[Cost] = []  # of single samples, if they were timed; cleared by the caller
        self.fresh: list[bool] = []  # which samples were not found in a cache, if there is one; as `costs`
        self._exclusive = exclusive  # No method of its own: what refers to itself outlives its loader.
        self._on_row = on_row
        self._native = as_native(dataset)
        self._draws = draws
        self._generators: tuple[RandomSource, ...] = GENERATORS if draws else ()
        self._is_looked_into = not draws and collate_fn in DRAW_NOTHING
        self._held: tuple[HeldGenerator, ...] = ()
        self._drawn_from: tuple[RandomSource, ...] = ()  # or may be, as far as is known
        self._collation_draws_from: tuple[RandomSource, ...] = ()
        self._marks: Marks = {}  # of the generators that the dataset is not known to draw from
        self._settled = not self._generators  # Something was loaded: what it draws from is known so far.
        self._asks_again = True  # for samples that were loaded without seeds
        # Where the generators are that such a sample, which was kept, has drawn from: they go on from there,
        # as with torch, or every epoch's first sample would draw the same numbers.
        self._went_on: list[Restore] = []

    @property
    def drew_nothing(self) -> bool:
        """Whether it was used and is proven, with its collate function, to draw from no generator."""
        return self._settled and not (self._drawn_from or self._collation_draws_from or self._held)

    def load(
        self,
        request: LoadRequest,
        *,
        stop_at_failure: bool,
        careful: bool = False,
        timed: bool = False,
        into: Images | None = None,
        loaded: Loaded | None = None,
    ) -> list[Sample]:
        """The samples; a FailedSample in the place of each that raised (the last, with `stop_at_failure`).

        `careful` calls `on_row` before each sample; `timed` adds the cost of each to `costs`. With `into`, a
        native dataset writes each image to its row there, and the labels are returned. The dataset is not
        asked for those that are `loaded` already, unless it draws.
        """
        load_one, load_all = self._loaders(request, into)
        before = len(self.costs)
        if timed:
            load_one = self._timed(load_one, request.indices)

        def attempt(marks: Marks) -> list[Sample]:
            nonlocal loaded
            del self.costs[before:]
            done, loaded = loaded or {}, None
            if not (done or self._drawn_from or careful or timed or not self._settled):
                try:
                    return load_all(done)
                except UnseededDrawError:
                    raise
                except Exception as error:  # Raised again, by its row, in what follows.
                    if is_interrupt(error):
                        raise
            load = _once(load_one, done) if done else load_one
            return self._one_by_one(request, load, marks, stop_at_failure, careful)

        return self._run(attempt)

    def _timed(self, load_one: LoadOne, indices: list[Index]) -> LoadOne:
        def timed(row: int) -> Sample:
            started = time.perf_counter()
            try:
                sample = load_one(row)
            except Exception as error:
                self.costs.append(cost(self.dataset, indices[row], FailedSample(error), 0))
                raise
            seconds = time.perf_counter() - started
            fresh = self._is_fresh(row)
            self.costs.append(cost(self.dataset, indices[row], sample, seconds) if fresh else NOT_LOADED)
            return sample

        return timed

    def _is_fresh(self, row: int) -> bool:
        """Whether the sample of a row was loaded, and not taken from a cache."""
        return True

    def _loaders(self, request: LoadRequest, into: Images | None) -> tuple[LoadOne, LoadAll]:
        """Functions that load the sample of a row, and all samples at once."""
        dataset, native, indices = self.dataset, self._native, request.indices
        if native is None:
            return lambda row: dataset[indices[row]], lambda loaded: load_items(dataset, indices, loaded)
        uniforms = compiled_rng.uniforms(request.seed, request.ids, request.turns, native.uniforms)
        if into is None:
            return (
                lambda row: native.sample(indices[row], uniforms[row]),
                lambda _: native.samples_of(indices, uniforms),
            )
        return (
            lambda row: native.write(indices[row], uniforms[row], into[row]),
            lambda _: native.write_many(indices, uniforms, into),
        )

    def _one_by_one(
        self,
        request: LoadRequest,
        load_one: LoadOne,
        marks: Marks,
        stop_at_failure: bool,
        careful: bool,
    ) -> list[Sample]:
        seeders = self._seeders(request)
        on_row = self._on_row if careful else None
        samples: list[Sample] = []
        for row in range(len(request.indices)):
            if on_row is not None:
                on_row(row)
            for seed in seeders:
                seed(row)
            try:
                samples.append(load_one(row))
            except UnseededDrawError:
                raise
            except Exception as error:
                if is_interrupt(error):
                    raise
                samples.append(FailedSample(error))
                if stop_at_failure:
                    break
            if row == 0 and self._found_draws(marks):
                if self._asks_again:
                    raise UnseededDrawError
                seeders = self._seeders(request)
        return samples

    def _seeds_of(self, request: LoadRequest) -> NDArray[np.uint64]:
        return counter_rng.seeds(request.seed, request.ids, request.turns)

    def _seeders(self, request: LoadRequest) -> list[Callable[[int], None]]:
        if not self._drawn_from:
            return []
        seeds = self._seeds_of(request)
        return [generator.seeder(seeds) for generator in self._drawn_from]

    def load_together(self, request: LoadRequest) -> list[Sample]:
        """What the dataset's `__getitems__` returns for all of the indices at once."""

        def attempt(_: Marks) -> list[Sample]:
            self._seed_for_batch(request, self._drawn_from)
            samples: list[Sample] = self.dataset.__getitems__(request.indices)
            return samples

        return self._run(attempt)

    def call(self, function: Callable[[Sample], Batch], request: LoadRequest, argument: Sample) -> Batch:
        """What a function of the batch returns, such as the user's collate function; it is called once."""
        if function in DRAW_NOTHING:
            return collate(function, argument)
        self._look_into()
        with self._timed_alone(self._generators or self._collation_draws_from):
            self._seed_for_batch(request, self._collation_draws_from)
            return function(argument)

    def _seed_for_batch(self, request: LoadRequest, generators: tuple[RandomSource, ...]) -> None:
        if generators:
            seeds = counter_rng.seeds(request.seed, request.step, request.batch_turn, counter_rng.Step.BATCH)
            for generator in generators:
                generator.seeder(seeds)(0)

    def _roots(self) -> tuple[object, ...]:
        """What samples are made by."""
        return (self.dataset,)

    def find(self, known: LongContainers | None = None) -> CodeFindings:
        """What the code shows that samples are made by. The main process may find it for forked workers."""
        return look_into(
            self.dataset,
            self._roots(),
            self._collate_fn,
            draws=self._draws,
            once=self._once,
            keeps_parts=self._keeps_parts,
            known=known,
        )

    def _look_into(self) -> None:
        """Find the generators, which a `worker_init_fn` may have put in; so not before the first sample."""
        if self._is_looked_into:
            return
        self._is_looked_into = True
        found = self._known() or self.find()
        self._held, self._collation_draws_from = found.held, found.collation_draws_from
        if self._draws:
            self._generators += found.held
            self._asks_again, self._drawn_from = found.asks_again, found.drawn_from

    @contextmanager
    def _timed_alone(self, generators: tuple[RandomSource, ...]) -> Iterator[None]:
        alone = self._exclusive or self._keep_held
        with alone(generators) if generators else nullcontext():
            started = time.perf_counter()
            try:
                yield
            finally:
                self.seconds += time.perf_counter() - started

    def _run(self, attempt: Callable[[Marks], Result]) -> Result:
        """What an attempt returns once it draws from no generator that was not seeded for it."""
        self._look_into()
        try:
            return self._attempted(attempt)
        finally:
            while self._went_on:
                self._went_on.pop()()

    def _attempted(self, attempt: Callable[[Marks], Result]) -> Result:
        with self._timed_alone(self._generators):
            while True:
                others = [one for one in self._generators if one not in self._drawn_from]
                marks = self._marks = {generator: generator.mark() for generator in others}
                try:
                    result = attempt(marks)
                except UnseededDrawError:
                    continue
                except Exception as error:
                    if self._found_draws(marks) and self._asks_again and not is_interrupt(error):
                        continue
                    raise
                if not self._found_draws(marks) or not self._asks_again:
                    self._settled = True
                    return result

    def _keep_held(self, _: tuple[RandomSource, ...]) -> AbstractContextManager[None]:
        return generators_kept(self._held) if self._held else nullcontext()

    def _found_draws(self, marks: Marks) -> bool:
        """Whether a generator was drawn from since it was marked; if so, it is seeded from now on."""
        found = tuple(generator for generator, mark in marks.items() if generator.mark() != mark)
        self._drawn_from += found
        if not self._asks_again:
            self._went_on += [generator.save() for generator in found if generator in self._held]
        for generator in found:
            del marks[generator]
        return bool(found)

    def keeps(self, marks: Sequence[object]) -> bool:
        """Whether samples loaded without seeds are good: no global generator has moved since these marks.

        If one has, it is seeded from now on, and they are good only where asking again may change others.
        """
        return not self._found_draws(dict(zip(GENERATORS, marks, strict=True))) or not self._asks_again
