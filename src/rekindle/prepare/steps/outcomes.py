"""How probable the distinct results of a random step are: rare ones do not count as much as frequent ones.

A step that changes one image in ten has, in three draws, hardly more than one distinct result, however many
it could have. What counts is the expected number of distinct outcomes in so many draws, which follows from
the probability of each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

_MOST_GROUPS = 256


class Outcomes(NamedTuple):
    """The outcomes of a random step for one image.

    `groups` are pairs of a probability and of how many outcomes have it, not necessarily an integer;
    `continuum` is the probability of an outcome that never comes again. All of them add up to 1.
    """

    groups: tuple[tuple[float, float], ...]
    continuum: float = 0.0

    def distinct(self, draws: float) -> float:
        """The expected number of distinct outcomes in so many draws.

        >>> chance(0.1).distinct(3)
        1.27
        """
        return draws * self.continuum + sum(count * seen(p, draws) for p, count in self.groups)

    def then(self, other: Outcomes) -> Outcomes:
        """The outcomes of two independent steps, one after the other."""
        groups = ((p * q, n * m) for p, n in self.groups for q, m in other.groups)
        return Outcomes(_merged(groups), 1 - (1 - self.continuum) * (1 - other.continuum))

    def with_probability(self, p: float) -> Outcomes:
        """Those of a step that is done with probability `p`, and otherwise leaves the image as it is."""
        if p >= 1:
            return self
        groups = [(1 - p, 1.0), *((p * q, count) for q, count in self.groups if p > 0)]
        return Outcomes(_merged(groups), p * self.continuum)


ONE = Outcomes(((1.0, 1.0),))
CONTINUOUS = Outcomes((), 1.0)


def seen(probability: float, draws: float) -> float:
    """How probable it is that an outcome is among so many draws."""
    return 1.0 if probability >= 1 else -math.expm1(draws * math.log1p(-probability))


def uniform(count: float) -> Outcomes:
    """So many outcomes, all equally probable; infinitely many are a continuum."""
    return CONTINUOUS if math.isinf(count) else Outcomes(((1 / count, float(count)),))


def chance(p: float) -> Outcomes:
    """A change that is made with probability `p`."""
    return ONE.with_probability(p)


def of_probabilities(probabilities: Iterable[float]) -> Outcomes:
    """Outcomes of these probabilities."""
    return Outcomes(_merged((p, 1.0) for p in probabilities if p > 0))


def of_counts(counts: Iterable[int]) -> Outcomes:
    """An estimate from draws, given how often each outcome came; nothing is assumed of their probabilities.

    Outcomes that came once stand for those that did not come: their share is the probability of a new outcome
    (Good, 1953), and how many there are is estimated from those that came once and twice (Chao, 1984). If
    none came twice, they count as a continuum.
    """
    often = Counter(counts)
    draws = sum(count * outcomes for count, outcomes in often.items())
    once, twice = often[1], often[2]
    unseen = once / draws
    # Those that came once are less probable than they seem, because others as probable did not come.
    rare = min(2 * twice / draws, (1 - unseen) / 2) if once else 0.0
    scale = (1 - unseen - rare) / (1 - unseen) if unseen < 1 else 0.0
    groups = [(scale * n / draws, float(outcomes)) for n, outcomes in often.items() if n > 1]
    if once:
        groups.append((rare / once, float(once)))
    if not twice:
        return Outcomes(_merged(groups), unseen)
    missing = max(1.0, once * (once - 1) / (2 * (twice + 1)))
    return Outcomes(_merged([*groups, (unseen / missing, missing)]))


def _merged(groups: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Groups of (nearly) the same probability as one; the more nearly, the fewer there are."""
    found = [(p, count) for p, count in groups if p > 0 and count > 0]
    for digits in (9, 3, 2, 1, 0):
        mass: dict[float, list[float]] = {}
        for p, count in found:
            group = mass.setdefault(round(math.log(p), digits), [0.0, 0.0])
            group[0] += p * count
            group[1] += count
        if len(mass) <= _MOST_GROUPS:
            break
    return tuple((total / count, count) for total, count in mass.values())
