"""Samples whose first part may be in the cache.

A sample is `finish(partial(raw, key of its generation), key of its turn)`. The partial result is looked up in
the cache, and computed only if it is not there: the sample is the same either way. Without a cache, each turn
is a generation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache as cache_result

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core import compiled_rng, counter_rng
from rekindle.core.public_rng import Seeder
from rekindle.core.samples import Sample
from rekindle.reuse.cache.store import Store
from rekindle.reuse.split_dataset import NativeSplit, TorchSplit
from rekindle.reuse.worker_view import WorkerView
from rekindle.run.bad_samples import FailedSample
from rekindle.run.job import Job
from rekindle.run.sample_loader import (
    Exclusive,
    Images,
    Known,
    LoadAll,
    Loaded,
    LoadOne,
    LoadRequest,
    OnRow,
    SampleLoader,
    Turns,
    UnseededDrawError,
)


class CachingLoader(SampleLoader):
    """Loads samples of a dataset that is split in two parts, of which the first is cached."""

    _keeps_parts = True

    def __init__(
        self,
        dataset: object,
        reused: WorkerView,
        exclusive: Exclusive | None = None,
        on_row: OnRow | None = None,
        draws: bool = True,
        collate_fn: object = None,
        once: bool = False,
    ) -> None:
        super().__init__(dataset, exclusive, on_row, draws, collate_fn, once)
        self._split, self._cache, self._part_seed = reused.split, reused.store, reused.part_seed
        self._partial_seeders: list[Seeder] = []
        self._final_seeders: list[Seeder] = []
        self._computed: list[bool] = []  # the rows whose first part was not in the cache

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
        """As `SampleLoader.load`; notes which samples were `fresh`."""
        samples = super().load(
            request, stop_at_failure=stop_at_failure, careful=careful, timed=timed, into=into, loaded=loaded
        )
        if self._cache is not None:
            self.fresh += self._computed[: len(samples)]
        return samples

    def _roots(self) -> tuple[object, ...]:
        return self.dataset, self._split

    def _is_fresh(self, row: int) -> bool:
        return self._computed[row]

    def _seeders(self, request: LoadRequest) -> list[Seeder]:
        """None before a sample: each of its parts is seeded by itself."""
        generations, seed = self._generations(request), self._seed_of_parts(request)
        self._partial_seeders = self._seeders_of(request, seed, generations, counter_rng.Step.SAMPLE)
        self._final_seeders = self._seeders_of(request, request.seed, request.turns, counter_rng.Step.FINAL)
        return []

    def _seed_of_parts(self, request: LoadRequest) -> int:
        """What first parts follow from: the loader's seed, or that of the jobs which share the cache."""
        return request.seed if self._part_seed is None else self._part_seed

    def _generations(self, request: LoadRequest) -> Turns:
        return request.turns if self._cache is None else request.generations

    def _seeders_of(self, request: LoadRequest, seed: int, turns: Turns, step: int) -> list[Seeder]:
        if not self._drawn_from:
            return []
        seeds = counter_rng.seeds(seed, request.ids, turns, step)
        return [generator.seeder(seeds) for generator in self._drawn_from]

    def _loaders(self, request: LoadRequest, into: Images | None) -> tuple[LoadOne, LoadAll]:
        self._partial_seeders = self._final_seeders = []
        self._computed = [False] * len(request.indices)
        ids, generations = _listed(request.ids), self._generations(request)
        turns = [generations] * len(ids) if isinstance(generations, int) else _listed(generations)
        if isinstance(self._split, NativeSplit):
            load_one = self._native_loader(self._split, request, ids, turns, into)
            return load_one, lambda _: self._load_all(load_one, ids, turns, {})  # May be asked again.
        load_one = self._third_party_loader(self._split, request, ids, turns)
        return load_one, lambda loaded: self._load_all(load_one, ids, turns, loaded)

    def _load_all(
        self, load_one: LoadOne, ids: list[int], generations: list[int], loaded: Loaded
    ) -> list[Sample]:
        rows = range(len(ids)) if self._cache is None else self._cache.order_of(ids, generations)
        for row in rows:
            try:
                loaded[row] = load_one(row)
            except Exception as error:
                loaded[row] = FailedSample(error)
                raise
        return [loaded[row] for row in range(len(ids))]

    def _native_loader(
        self,
        split: NativeSplit,
        request: LoadRequest,
        ids: list[int],
        generations: list[int],
        into: Images | None,
    ) -> LoadOne:
        seed, generation = self._seed_of_parts(request), self._generations(request)
        # The numbers of both parts are those of the unsplit pipeline: split or not, a sample is the same.
        late = compiled_rng.uniforms(request.seed, request.ids, request.turns, split.uniforms)
        late = late[:, split.early :]

        @cache_result
        def early() -> NDArray[np.float64]:
            return compiled_rng.uniforms(seed, request.ids, generation, split.early)

        cache, draws_nothing = self._cache, not self._generators

        def load_one(row: int) -> Sample:
            index, out = request.indices[row], None if into is None else into[row]
            label = split.label(index)
            if cache is not None and draws_nothing:
                found = cache.peek(ids[row], generations[row])
                if found is not None:
                    image = split.finish(index, _writable(found.value), late[row], out)
                    if found.still_there():
                        return label if into is not None else (image, label)
            compute = lambda: split.partial(index, early()[row])  # noqa: E731
            partial = self._partial(row, ids[row], generations[row], compute, missing=draws_nothing)
            image = split.finish(index, partial, late[row], out)
            return label if into is not None else (image, label)

        return load_one

    def _third_party_loader(
        self, split: TorchSplit, request: LoadRequest, ids: list[int], generations: list[int]
    ) -> LoadOne:
        def load_one(row: int) -> Sample:
            index = request.indices[row]
            partial = self._partial(row, ids[row], generations[row], lambda: split.partial(index))
            return split.finish(index, partial)

        return load_one

    def _partial(
        self,
        row: int,
        sample_id: int,
        generation: int,
        compute: Callable[[], Sample],
        missing: bool = False,
    ) -> Sample:
        """The first part of a sample, with the generators seeded for the second.

        From the cache, unless it is known to be `missing` there; else computed, and added to the cache.
        """
        cache = self._cache
        partial = None if cache is None or missing else cache.get(sample_id, generation)
        if partial is None and cache is not None:
            partial = cache.wait_or_claim(sample_id, generation)
            if partial is None:
                try:
                    partial = self._compute(row, compute, cache, sample_id, generation)
                finally:
                    cache.release(sample_id, generation)
        elif partial is None:
            partial = self._compute(row, compute, None, sample_id, generation)
        for seed in self._final_seeders:
            seed(row)
        return partial

    def _compute(
        self, row: int, compute: Callable[[], Sample], cache: Store | None, sample_id: int, generation: int
    ) -> Sample:
        """The first part of a sample, added to the cache."""
        self._computed[row] = True
        for seed in self._partial_seeders:
            seed(row)
        started = time.perf_counter()
        partial = compute()
        if self._found_draws(self._marks):  # It must not be cached: no other worker would draw the same.
            raise UnseededDrawError
        if cache is not None:
            partial = cache.keep(sample_id, generation, partial)
            cache.note_seconds(time.perf_counter() - started)
        return partial


def sample_loader(
    job: Job,
    *,
    exclusive: Exclusive | None = None,
    on_row: OnRow | None = None,
    known: Known = lambda: None,
) -> SampleLoader:
    """The loader for the samples of a job, parts of which may be reused."""
    collate_fn, once = job.collate_fn, job.has_state
    if job.reused is None:
        return SampleLoader(job.dataset, exclusive, on_row, job.draws, collate_fn, once, known)
    return CachingLoader(job.dataset, job.reused, exclusive, on_row, job.draws, collate_fn, once)


def _writable(cached: Sample) -> Sample:
    """A cached value that steps may work on: those on tensors may write to them (`inplace`)."""
    return cached.clone() if isinstance(cached, torch.Tensor) else cached


def _listed(numbers: Sequence[int] | NDArray[np.int64]) -> list[int]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)
