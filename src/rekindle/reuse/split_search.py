"""Where to split: where the least is left to do, with enough diversity.

What steps cost is in a table, so for steps that it has, no clock is asked: the choice follows from the steps
and from the size of some images. If there are others, what the table says, with a guess for them, is tried
against measurements, and only another split point that is clearly faster is preferred to it.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rekindle.core import counter_rng
from rekindle.core.global_rng import GENERATORS
from rekindle.core.interrupts import is_interrupt
from rekindle.core.samples import Sample
from rekindle.prepare.steps.compose import StepContainer
from rekindle.prepare.steps.outcomes import Outcomes
from rekindle.reuse.diversity import Diversity, estimated, in_turn, left_by_reuse
from rekindle.reuse.layers import Layer
from rekindle.reuse.settings import Refurbish
from rekindle.reuse.split_dataset import ComposeSplit, NativeSplit, Split, described
from rekindle.reuse.step_costs import CACHED_BYTE, DECODING, UNKNOWN, nanoseconds

_SAMPLES = 4
_REPEATED = 3  # measurements of each
_SHUFFLED = 1 << 20  # samples, at most
_CLEARLY = 0.75  # of the time
_log = logging.getLogger("rekindle")
Size = tuple[int, int]  # height and width


@dataclass(frozen=True)
class Candidate:
    """A split point, and what it would mean. Seconds are of one sample."""

    index: int
    partial_seconds: float
    final_seconds: float
    nbytes: int  # that are cached of a sample
    share: float  # of the samples that fit
    diversity: Diversity

    def seconds(self, factor: float) -> float:
        """What a sample takes on average: its last part always, its first part if it is not cached."""
        recomputed = 1 - self.share * (1 - 1 / factor)
        return self.final_seconds + recomputed * self.partial_seconds


class SplitSearch:
    """Looks for the best split of a dataset of `size` samples.

    `last` is the last index at which it can be split.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        split_at: Callable[[int], Split],
        nbytes_of: Callable[[Sample], int],
        size: int,
        last: int,
    ) -> None:
        self._layers, self._split_at, self._nbytes_of = layers, split_at, nbytes_of
        self._last, self._dataset_size = last, size
        # The same in every run: the choice must not depend on the seed.
        tried = few_samples(size, _SAMPLES, 0)
        self._indices = list(loadable_parts(split_at(0), tried)) or tried
        self._seen: dict[int, tuple[Size | None, int]] = {}  # of the parts before each layer

    @property
    def measures(self) -> bool:
        """Whether there are steps that no table has."""
        return any(nanoseconds(layer.ours) is None for layer in self._layers)

    def outcomes(self) -> list[Outcomes]:
        """How probable the outcomes of each layer are: as it says, or as one of some samples shows."""
        # Here and not above: compiled code takes a second to load.
        from rekindle.prepare.steps.crop_window import WindowStep

        found: list[Outcomes] = []
        for index, layer in enumerate(self._layers):
            crops = isinstance(layer.ours, WindowStep | StepContainer)
            known = layer.outcomes(self._size_at(min(index, self._last)) if crops else None)
            if known is None:
                _seed()
                known = estimated(self._once(index, layer))
            found.append(known)
        return found

    def choose(self, settings: Refurbish, capacity: float) -> Candidate:
        """The best split, with room for `capacity` bytes; it is logged."""
        outcomes = self.outcomes()
        shares = [
            left_by_reuse(in_turn(outcomes[:at]), in_turn(outcomes[at:]), settings.factor, settings.epochs)
            for at in range(self._last + 1)
        ]
        diverse = [at for at, share in enumerate(shares) if share >= settings.min_diversity]
        found = [self._from_table(at, capacity, shares[at]) for at in diverse]
        best = min(found, key=lambda one: one.seconds(settings.factor))
        if self.measures:
            found = [self._measured(at, capacity, shares[at]) for at in diverse]
            guess = next(one for one in found if one.index == best.index)
            quickest = min(found, key=lambda one: one.seconds(settings.factor))
            limit = _CLEARLY * guess.seconds(settings.factor)
            best = quickest if quickest.seconds(settings.factor) < limit else guess
        self._report(found, best)
        return best

    def _report(self, found: Sequence[Candidate], best: Candidate) -> None:
        by = "measured" if self.measures else "by the table of costs"
        for one in found:
            _log.debug(
                "split %s: %.2f ms cached, %.2f ms each time, %d bytes a sample, %.0f %% fit, diversity %.2f",
                *(described(self._layers, one.index), 1e3 * one.partial_seconds, 1e3 * one.final_seconds),
                *(one.nbytes, 100 * one.share, one.diversity),
            )
        _log.info(
            "Refurbish: split %s; %.2f of %.2f ms a sample are cached (%s), diversity %.2f",
            described(self._layers, best.index),
            1e3 * best.partial_seconds,
            1e3 * (best.partial_seconds + best.final_seconds),
            by,
            best.diversity,
        )

    def _from_table(self, index: int, capacity: float, share: Diversity) -> Candidate:
        """What a split would mean, without a clock."""
        _, mean = self._parts_at(index)
        costs = []
        for number, layer in enumerate(self._layers):
            cost = nanoseconds(layer.ours)
            costs.append((UNKNOWN if cost is None else cost) * self._pixels_at(min(number + 1, self._last)))
        return Candidate(
            index=index,
            partial_seconds=1e-9 * (DECODING * self._pixels_at(0) + sum(costs[:index])),
            final_seconds=1e-9 * (CACHED_BYTE * mean + sum(costs[index:])),
            nbytes=mean,
            share=min(1.0, capacity / max(mean * self._dataset_size, 1)),
            diversity=share,
        )

    def _measured(self, index: int, capacity: float, share: Diversity) -> Candidate:
        """What a split means, by the clock."""
        split = self._split_at(index)
        partial, final = [], []
        for sample in self._indices:
            seconds = np.array([self._timed(split, sample) for _ in range(_REPEATED)])
            partial.append(seconds[:, 0].min())  # The others were interrupted by something else.
            final.append(seconds[:, 1].min())
        _, mean = self._parts_at(index)
        return Candidate(
            index=index,
            partial_seconds=float(np.mean(partial)),
            final_seconds=float(np.mean(final)),
            nbytes=mean,
            share=min(1.0, capacity / max(mean * self._dataset_size, 1)),
            diversity=share,
        )

    def _timed(self, split: Split, sample: int) -> tuple[float, float]:
        """The seconds that both parts of a sample take."""
        started = time.perf_counter()
        cached = _partial(split, sample)
        half = time.perf_counter()
        _finish(split, sample, cached)
        return half - started, time.perf_counter() - half

    def _pixels_at(self, index: int) -> int:
        height, width = self._size_at(index) or (1, 1)
        return height * width

    def _size_at(self, index: int) -> Size | None:
        """Height and width of an image before a layer; None if there are none."""
        return self._parts_at(index)[0]

    def _parts_at(self, index: int) -> tuple[Size | None, int]:
        """What is cached of a sample before a layer: the median size of its image, the mean of its bytes."""
        if index not in self._seen:
            parts = list(loadable_parts(self._split_at(index), self._indices).values())
            sizes = [size for size in map(_size_of, parts) if size is not None]
            sizes.sort(key=lambda size: (size[0] * size[1], size))
            mean = int(np.mean([self._nbytes_of(part) for part in parts])) if parts else 0
            self._seen[index] = sizes[len(sizes) // 2] if sizes else None, mean
        return self._seen[index]

    def _once(self, index: int, layer: Layer) -> Callable[[], Sample]:
        """What a layer makes of a sample, which stays as it is even if the layer writes in place."""
        split = self._split_at(index)
        sample = self._indices[0]
        if isinstance(split, ComposeSplit):
            alone = split.followed_by(layer.step)
            cached = next((part for part in map(split.partial, self._indices) if part[0] != "()"), None)
            return lambda: None if cached is None else alone.finish(sample, copy.deepcopy(cached))
        image, step = _partial(split, sample), layer.step
        return lambda: step(copy.deepcopy(image))


def few_samples(size: int, count: int, seed: int) -> list[int]:
    """Some samples by chance; of very many without putting all of them in order, so perhaps one twice."""
    if size <= _SHUFFLED:
        return [*map(int, counter_rng.permutation(size, seed, 0)[:count])]
    return [int(drawn) % size for drawn in counter_rng.split(seed, np.arange(count))]


def loadable_parts(split: Split, indices: list[int]) -> dict[int, Sample]:
    """The first parts of these samples. Workers raise what cannot be loaded, when its turn comes."""
    parts = {}
    _seed()
    for index in indices:
        try:
            parts[index] = _partial(split, index)
        except Exception as error:
            if is_interrupt(error):
                raise
    return parts


def _seed() -> None:
    """Have the global generators draw the same in every run; the caller restores them."""
    seeds = counter_rng.seeds(0, [0])
    for generator in GENERATORS:
        generator.seeder(seeds)(0)


def _partial(split: Split, index: int) -> Sample:
    if isinstance(split, NativeSplit):
        return split.partial(index, counter_rng.uniforms(0, [index], count=split.early)[0])
    return split.partial(index)


def _finish(split: Split, index: int, cached: Sample) -> Sample:
    if isinstance(split, NativeSplit):
        uniforms = counter_rng.uniforms(0, [index], count=split.uniforms)
        return split.finish(index, cached, uniforms[0, split.early :], None)
    return split.finish(index, cached)


def _size_of(value: object) -> Size | None:
    """Height and width of the first image in a value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return next((size for size in map(_size_of, value) if size is not None), None)
    size, shape = getattr(value, "size", None), getattr(value, "shape", None)
    if isinstance(size, tuple) and len(size) == 2 and hasattr(value, "mode"):  # Pillow's: width first
        return size[1], size[0]
    if shape is None or len(shape) not in (2, 3):
        return None
    height, width = shape[-2:] if len(shape) == 2 or shape[0] in (1, 3) else shape[:2]
    return int(height), int(width)
