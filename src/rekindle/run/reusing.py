"""Samples of which the first part may have been made before.

A sample is `finish(partial(raw, key of its generation), key of its turn)`. The first part is looked up, and
made only if it is not there: what comes out is the same either way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle import keys
from rekindle.reuse.cuts import ForeignCut, NativeCut
from rekindle.reuse.reused import Reused
from rekindle.run.load import MadeInVainError, SampleLoader, Turns, Wanted

Seeder = Callable[[int], None]


class ReusingLoader(SampleLoader):
    """Loads samples of a data set that is cut in two."""

    def __init__(self, dataset: Any, reused: Reused, **settings: Any) -> None:
        super().__init__(dataset, **settings)
        self._cut, self._store = reused.cut, reused.store
        self._native = reused.native
        self._early: list[Seeder] = []
        self._late: list[Seeder] = []

    def _seeders(self, wanted: Wanted) -> list[Seeder]:
        """None before a sample: each of its parts is seeded by itself."""
        self._early = self._seeders_of(wanted, wanted.generations, keys.Step.SAMPLE)
        self._late = self._seeders_of(wanted, wanted.turns, keys.Step.FINAL)
        return []

    def _seeders_of(self, wanted: Wanted, turns: Turns, step: int) -> list[Seeder]:
        if not self._moving:
            return []
        seeds = keys.seeds(wanted.seed, wanted.ids, turns, step)
        return [stream.seeder(seeds) for stream in self._moving]

    def _ways(
        self, wanted: Wanted, into: NDArray[Any] | None
    ) -> tuple[Callable[[int], Any], Callable[[], list[Any]]]:
        self._early = self._late = []
        ids, generations = _listed(wanted.ids), wanted.generations
        turns = [generations] * len(ids) if isinstance(generations, int) else _listed(generations)
        if isinstance(self._cut, NativeCut):
            one = self._native_way(self._cut, wanted, ids, turns, into)
        else:
            one = self._foreign_way(self._cut, wanted, ids, turns)
        return one, lambda: [one(row) for row in range(len(ids))]

    def _native_way(
        self, cut: NativeCut, wanted: Wanted, ids: list[int], generations: list[int], into: Any
    ) -> Callable[[int], Any]:
        early = keys.uniforms(wanted.seed, wanted.ids, wanted.generations, count=cut.early)
        # The numbers of both parts are those of the whole: cut or not, a sample is the same.
        late = keys.uniforms(wanted.seed, wanted.ids, wanted.turns, count=cut.uniforms)[:, cut.early :]
        store, quiet = self._store, not self._streams

        def one(row: int) -> Any:
            index, out = wanted.indices[row], None if into is None else into[row]
            label = cut.label(index)
            if store is not None and quiet:
                found = store.peek(ids[row], generations[row])
                if found is not None:
                    image = cut.finish(index, _safe(found.value), late[row], out)
                    if found.still_there():
                        return label if into is not None else (image, label)
            make = lambda: cut.partial(index, early[row])  # noqa: E731
            kept = self._kept(row, ids[row], generations[row], make, looked=quiet)
            image = cut.finish(index, kept, late[row], out)
            return label if into is not None else (image, label)

        return one

    def _foreign_way(
        self, cut: ForeignCut, wanted: Wanted, ids: list[int], generations: list[int]
    ) -> Callable[[int], Any]:
        def one(row: int) -> Any:
            index = wanted.indices[row]
            return cut.finish(self._kept(row, ids[row], generations[row], lambda: cut.partial(index)))

        return one

    def _kept(
        self, row: int, id_: int, generation: int, make: Callable[[], Any], looked: bool = False
    ) -> Any:
        """The first part of a sample, found or made, with the generators seeded for the second."""
        store = self._store
        kept = None if store is None or looked else store.get(id_, generation)
        if kept is None:
            for seed in self._early:
                seed(row)
            started = time.perf_counter()
            kept = make()
            if self._moved(self._marks):  # It drew numbers that nobody will ever draw again.
                raise MadeInVainError
            if store is not None:
                kept = store.keep(id_, generation, kept)
                store.note_seconds(time.perf_counter() - started)
        for seed in self._late:
            seed(row)
        return kept


def sample_loader(dataset: Any, reused: Reused | None, **settings: Any) -> SampleLoader:
    """What loads the samples of a data set, of which parts may be reused."""
    if reused is None:
        return SampleLoader(dataset, **settings)
    return ReusingLoader(dataset, reused, **settings)


def _safe(kept: Any) -> Any:
    """What steps may work on while it lies in the cache: those on tensors may write to them (`inplace`)."""
    return kept.clone() if isinstance(kept, torch.Tensor) else kept


def _listed(numbers: Sequence[int] | NDArray[np.int64]) -> list[int]:
    return numbers.tolist() if isinstance(numbers, np.ndarray) else list(numbers)
