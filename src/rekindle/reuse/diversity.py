"""How many distinct views of a sample a training run sees, and what reuse leaves of them.

A is the whole random augmentation, |A| how many distinct outcomes it has for one image. Split in two, its
first part is cached and used `factor` times, and its last part, of |A_F| outcomes, is recomputed each time.
The paper on data refurbishing (Lee et al., USENIX ATC'21) assumes that all outcomes are equally probable.
Many are not (an image in ten is erased in part), so here each counts with its own probability; for equal
ones, the formulas are the paper's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import xxhash

from rekindle.errors import ArgumentError
from rekindle.prepare.steps.outcomes import CONTINUOUS, ONE, Outcomes, of_counts, seen, uniform

_DRAWS = 128


class Diversity(float):
    """Distinct views with reuse, as a share of those without it.

    Attributes:
        expected: Distinct views of one sample with reuse.
        standard: Distinct views of one sample without it.

    """

    expected: float
    standard: float

    def __new__(cls, expected: float, standard: float) -> Diversity:
        share = super().__new__(cls, expected / standard if standard else 1.0)
        share.expected, share.standard = expected, standard
        return share

    def __repr__(self) -> str:
        return f"{float(self):.3f} ({self.expected:.1f} distinct views a sample, {self.standard:.1f} without)"


def refurbished(outcomes: float, final_outcomes: float, factor: float, epochs: float) -> Diversity:
    """Distinct views in so many epochs, if the first part of the augmentation is used `factor` times.

    All outcomes are equally probable, as in the paper.

    >>> round(float(refurbished(196_000, 14, factor=3, epochs=300)), 2)
    0.93
    """
    if math.isinf(final_outcomes):
        return left_by_reuse(ONE, CONTINUOUS, factor, epochs)
    return left_by_reuse(uniform(outcomes / final_outcomes), uniform(final_outcomes), factor, epochs)


def left_by_reuse(first: Outcomes, last: Outcomes, factor: float, epochs: float) -> Diversity:
    """The same for outcomes of any probabilities, of the part that is cached and of the one that is not."""
    rounds = epochs / factor
    expected = epochs * last.continuum
    for q, many in last.groups:
        in_round = seen(
            q, factor
        )  # how probable an outcome of the last part is in the uses of one first part
        expected += rounds * first.continuum * many * in_round
        expected += sum(count * many * seen(p * in_round, rounds) for p, count in first.groups)
    return Diversity(expected, first.then(last).distinct(epochs))


def diversity(pipeline: object, split: int | str, factor: float, epochs: int) -> Diversity:
    """What reuse leaves of the distinct views of a sample: a share, with the numbers behind it.

    Args:
        pipeline: Steps, in a list or a Compose, or a dataset that has them. Ours know how probable their
            outcomes are; others declare how many they have (`step.diversity`). A function that does not
            counts as having one.
        split: Where the pipeline is split, as in `Refurbish`.
        factor: How often the part before the split is used.
        epochs: The length of training.

    >>> from rekindle.transforms import RandAugment, RandomHorizontalFlip
    >>> diversity([RandAugment(2), RandomHorizontalFlip()], split=1, factor=3, epochs=90)
    0.971 (78.1 distinct views a sample, 80.5 without)

    """
    from rekindle.reuse.layers import find_split, layers_of

    if not (isinstance(epochs, int | float) and epochs >= 1 and factor >= 1):
        raise ArgumentError(f"factor={factor!r}, epochs={epochs!r}: both must be at least 1.")
    layers = layers_of(pipeline)
    index = find_split(layers, split)
    outcomes = [layer.outcomes() or ONE for layer in layers]
    return left_by_reuse(in_turn(outcomes[:index]), in_turn(outcomes[index:]), factor, epochs)


def in_turn(outcomes: Sequence[Outcomes]) -> Outcomes:
    """The outcomes of independent steps, one after the other."""
    together = ONE
    for one in outcomes:
        together = together.then(one)
    return together


def estimated(draw: Callable[[], object]) -> Outcomes:
    """How probable the distinct outcomes of a function are, estimated from some draws.

    >>> import random
    >>> random.seed(0)
    >>> round(estimated(lambda: random.randrange(10)).distinct(1000))
    10
    """
    return of_counts(Counter(view_hash(draw()) for _ in range(_DRAWS)).values())


def view_hash(view: object) -> bytes:
    """A hash of a view: a tensor, an array, an image, or a structure of them. Equal views have equal ones."""
    digest = xxhash.xxh3_128()
    for part in _parts(view):
        digest.update(part)
    return digest.digest()


def _parts(view: object) -> Iterable[bytes | memoryview]:
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
