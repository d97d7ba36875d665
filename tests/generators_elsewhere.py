"""A module as a script has beside its own: generators, and functions that draw from them."""

import random

import numpy as np

rng = np.random.default_rng(7)
hidden = random.Random(8)


class Holder:
    """Has a generator where only a name within a name leads to it."""

    def __init__(self) -> None:
        self.rng = np.random.RandomState(9)


holder = Holder()


def jitter() -> float:
    return hidden.random()
