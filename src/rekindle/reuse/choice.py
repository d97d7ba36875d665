"""Where to cut, by measuring: the cut that leaves the least to do, with enough diversity."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rekindle import keys
from rekindle.reuse.cuts import Cut, NativeCut, described
from rekindle.reuse.diversity import Diversity, estimated, refurbished
from rekindle.reuse.layers import Layer
from rekindle.reuse.settings import Refurbish

_SAMPLES = 8
_log = logging.getLogger("rekindle")


@dataclass(frozen=True)
class Candidate:
    """A cut, and what it would mean. Seconds are of one sample."""

    place: int
    partial_seconds: float
    final_seconds: float
    nbytes: int  # that are kept of a sample
    share: float  # of the samples that fit
    diversity: Diversity

    def seconds(self, factor: float) -> float:
        """What a sample takes on average: its last part always, its first part if it has to be made."""
        made = 1 - self.share * (1 - 1 / factor)
        return self.final_seconds + made * self.partial_seconds


def choose_cut(
    layers: Sequence[Layer],
    cut_at: Callable[[int], Cut],
    nbytes_of: Callable[[Any], int],
    settings: Refurbish,
    *,
    size: int,
    capacity: float,
    last: int,
    seed: int,
) -> Candidate:
    """The best cut of a data set of `size` samples, with room for `capacity` bytes; it is logged.

    `last` is the last place where it can be cut.
    """
    tried = keys.permutation(size, seed, 0)[:_SAMPLES].tolist()
    indices = list(parts_that_can_be_made(cut_at(0), tried)) or tried
    outcomes = known_outcomes(layers, cut_at, indices[0])
    found = []
    for place in range(last + 1):
        share = refurbished(
            math.prod(outcomes), math.prod(outcomes[place:]), settings.factor, settings.epochs
        )
        if share >= settings.min_diversity:
            found.append(_measured(cut_at(place), place, indices, nbytes_of, size, capacity, share))
    best = min(found, key=lambda one: one.seconds(settings.factor))
    for one in found:
        _log.debug(
            "cut %s: %.2f ms kept, %.2f ms anew each time, %d bytes a sample, %.0f %% fit, diversity %.2f",
            *(described(layers, one.place), 1e3 * one.partial_seconds, 1e3 * one.final_seconds),
            *(one.nbytes, 100 * one.share, one.diversity),
        )
    _log.info(
        "Refurbish: cut %s; %.2f of %.2f ms a sample are kept, diversity %.2f",
        described(layers, best.place),
        1e3 * best.partial_seconds,
        1e3 * (best.partial_seconds + best.final_seconds),
        best.diversity,
    )
    return best


def parts_that_can_be_made(cut: Cut, indices: list[int]) -> dict[int, Any]:
    """The first parts of these samples. What cannot be made is told by workers, when its turn comes."""
    parts = {}
    for index in indices:
        with suppress(Exception):
            parts[index] = _partial(cut, index)
    return parts


def known_outcomes(layers: Sequence[Layer], cut_at: Callable[[int], Cut], index: int) -> list[float]:
    """How many distinct outcomes each layer has: as it says, or as it seems."""
    outcomes = []
    for place, layer in enumerate(layers):
        if layer.diversity is not None:
            outcomes.append(layer.diversity)
            continue
        image = _image(_partial(cut_at(place), index))
        outcomes.append(estimated(partial(_once, layer.step, image)))
    return outcomes


def _once(step: Callable[[Any], Any], image: Any) -> Any:
    """What a step makes of an image, which stays as it is even if the step writes in place."""
    return step(copy.deepcopy(image))


def _measured(
    cut: Cut,
    place: int,
    indices: list[int],
    nbytes_of: Callable[[Any], int],
    size: int,
    capacity: float,
    share: Diversity,
) -> Candidate:
    partial, final, nbytes = [], [], []
    for index in indices:
        started = time.perf_counter()
        kept = _partial(cut, index)
        half = time.perf_counter()
        nbytes.append(nbytes_of(kept))
        resumed = time.perf_counter()
        _finish(cut, index, kept)
        partial.append(half - started)
        final.append(time.perf_counter() - resumed)
    mean = int(np.mean(nbytes))
    return Candidate(
        place=place,
        partial_seconds=float(np.median(partial)),
        final_seconds=float(np.median(final)),
        nbytes=mean,
        share=min(1.0, capacity / max(mean * size, 1)),
        diversity=share,
    )


def _partial(cut: Cut, index: int) -> Any:
    if isinstance(cut, NativeCut):
        return cut.partial(index, keys.uniforms(0, [index], count=cut.early)[0])
    return cut.partial(index)


def _finish(cut: Cut, index: int, kept: Any) -> Any:
    if isinstance(cut, NativeCut):
        return cut.finish(index, kept, keys.uniforms(0, [index], count=cut.uniforms)[0, cut.early :], None)
    return cut.finish(kept)


def _image(kept: Any) -> Any:
    return kept[0] if isinstance(kept, list | tuple) else kept
