"""How many distinct views of a sample a training run sees, and what reuse leaves of them.

A is the whole random augmentation, |A| how many distinct outcomes it has for one image. Cut in two, its first
part is kept and used `factor` times, and its last part, of |A_F| outcomes, is done anew each time. All draws
are taken as uniform and independent, as in the paper on data refurbishing (Lee et al., USENIX ATC'21).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from rekindle.errors import ArgumentError

_DRAWS = 128


class Diversity(float):
    """Distinct views with reuse, as a share of those without it.

    Attributes:
        expected: Distinct views of one sample, with reuse.
        standard: The same without it.

    """

    expected: float
    standard: float

    def __new__(cls, expected: float, standard: float) -> Diversity:
        share = super().__new__(cls, expected / standard if standard else 1.0)
        share.expected, share.standard = expected, standard
        return share

    def __repr__(self) -> str:
        return f"{float(self):.3f} ({self.expected:.1f} distinct views a sample, {self.standard:.1f} without)"


def distinct(outcomes: float, draws: float) -> float:
    """How many distinct ones are expected among so many uniform draws from so many outcomes.

    >>> distinct(2, 1), distinct(2, 2), distinct(math.inf, 300)
    (1.0, 1.5, 300)
    """
    if math.isinf(outcomes):
        return draws
    if outcomes == 1:
        return 1.0 if draws > 0 else 0.0
    return -outcomes * math.expm1(draws * math.log1p(-1 / outcomes))


def refurbished(outcomes: float, final_outcomes: float, factor: float, epochs: float) -> Diversity:
    """Distinct views in so many epochs if the part before the final one is used `factor` times.

    >>> round(float(refurbished(196_000, 14, factor=3, epochs=300)), 2)
    0.93
    """
    in_one_entry = distinct(final_outcomes, factor)
    rounds = epochs / factor
    if math.isinf(outcomes):
        expected = rounds * in_one_entry
    else:  # Each entry shows that many of the outcomes: the share q, and each outcome is missed or not.
        share = in_one_entry / outcomes
        expected = outcomes if share >= 1 else -outcomes * math.expm1(rounds * math.log1p(-share))
    return Diversity(expected, distinct(outcomes, epochs))


def diversity(pipeline: Any, split: int | str, factor: float, epochs: int) -> Diversity:
    """What reuse leaves of the distinct views of a sample: a share, with the numbers behind it.

    Args:
        pipeline: Steps, in a list or a Compose, or a data set that has them. Each says how many outcomes it
            has (`step.diversity`); a function that does not say counts as having one.
        split: Where the pipeline is cut, as in `Refurbish`.
        factor: How often the part before the cut is used.
        epochs: How long the training is.

    >>> from rekindle.transforms import RandAugment, RandomHorizontalFlip
    >>> diversity([RandAugment(2), RandomHorizontalFlip()], split=1, factor=3, epochs=90)
    0.971 (78.1 distinct views a sample, 80.5 without)

    """
    from rekindle.reuse.layers import find_split, layers_of

    if not (isinstance(epochs, int | float) and epochs >= 1 and factor >= 1):
        raise ArgumentError(f"factor={factor!r}, epochs={epochs!r}: give numbers from 1 on.")
    layers = layers_of(pipeline)
    place = find_split(layers, split)
    outcomes = [layer.diversity or 1 for layer in layers]
    return refurbished(math.prod(outcomes), math.prod(outcomes[place:]), factor, epochs)


def estimated(draw: Callable[[], Any]) -> float:
    """How many distinct outcomes a function has, judged by drawing some: infinite, if none comes twice.

    >>> import random
    >>> random.seed(0)
    >>> round(estimated(lambda: random.randrange(10)))
    10
    """
    views = {view_hash(draw()) for _ in range(_DRAWS)}
    if len(views) == _DRAWS:
        return math.inf
    low, high = float(len(views)), float(_DRAWS**2)
    while high - low > 1e-3:  # `distinct` grows with the number of outcomes
        middle = (low + high) / 2
        low, high = (middle, high) if distinct(middle, _DRAWS) < len(views) else (low, middle)
    return low


def view_hash(view: Any) -> bytes:
    """Equal for equal views, different for different ones: of tensors, arrays, images and what holds them."""
    digest = xxhash.xxh3_128()
    for part in _parts(view):
        digest.update(part)
    return digest.digest()


def _parts(view: Any) -> Iterable[bytes | memoryview]:
    if isinstance(view, torch.Tensor):
        view = view.detach().cpu().numpy()
    if isinstance(view, dict):
        for name, part in view.items():
            yield repr(name).encode()
            yield from _parts(part)
    elif isinstance(view, Sequence) and not isinstance(view, str | bytes):
        for part in view:
            yield from _parts(part)
    elif hasattr(view, "__array__") or hasattr(view, "__array_interface__"):
        array = np.ascontiguousarray(view)
        yield f"{array.dtype}{array.shape}".encode()
        yield array.reshape(-1).view(np.uint8).data
    else:
        yield repr(view).encode()
