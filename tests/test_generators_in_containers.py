"""Generators in iterators, sets and long lists are found, and seeded in an order that does not vary."""

import itertools
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from rekindle.core.analysis.held_generators import MOST_GENERATORS, held_generators


@dataclass
class Plain:
    rng: random.Random = field(default_factory=lambda: random.Random(0))


def test_generators_that_iterators_hold_are_found() -> None:
    assert (
        len(
            held_generators(
                itertools.repeat(random.Random()), iter([random.Random()]), map(str, [random.Random()])
            )
        )
        == 3
    )


def test_generators_of_a_set_draw_different_numbers_and_each_the_same_in_another_order() -> None:
    seeds = range(8)
    drawn = []
    for order in (seeds, reversed(seeds)):
        generators = {seed: random.Random(seed) for seed in order}
        found = held_generators(set(generators.values()))
        assert len(found) == len(generators)
        for one in found:
            one.seeder(np.arange(1, dtype=np.uint64))(0)
        drawn.append([generators[seed].random() for seed in seeds])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == len(seeds)


def test_a_long_container_of_which_some_hold_generators_is_looked_at_as_a_whole() -> None:
    assert len(held_generators([Plain() for _ in range(200)] + [0] * 2000 + [Plain()])) == 201


def test_more_generators_than_can_be_seeded_are_reported() -> None:
    with pytest.warns(UserWarning, match="holds 300 random generators"):
        found = held_generators([random.Random(seed) for seed in range(300)])
    assert len(found) == MOST_GENERATORS
