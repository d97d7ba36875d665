"""A module as a script has beside its own: generators, and functions that draw from them."""

import functools
import logging
import random

import numpy as np

rng = np.random.default_rng(7)
hidden = random.Random(8)

log = logging.getLogger(__name__)
SCALE = 2.0


class Holder:
    """Has a generator where only a name within a name leads to it."""

    def __init__(self) -> None:
        self.rng = np.random.RandomState(9)


holder = Holder()


def jitter() -> float:
    return hidden.random()


def scaled(value: float) -> float:
    log.debug("scaled by %s", SCALE)
    return value * SCALE


@functools.lru_cache
def class_of(index: int) -> int:
    return index % 3
