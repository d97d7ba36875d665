"""The three generators that third-party code draws from: `random`, `numpy.random` and torch's default.

Transforms of other libraries draw from these, so each is seeded from the sample's key before the sample is
loaded, unless the dataset is proven to leave it alone (`possible_draws`); `mark` shows whether it did.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.utils.data import _utils

from rekindle.core import direct_rng
from rekindle.core.public_rng import (
    GlobalGenerator,
    NumPyGenerator,
    PythonGenerator,
    RandomSource,
    TorchGenerator,
)
from rekindle.core.sole_use import sole_use

__all__ = ["GENERATORS", "GlobalGenerator", "generators", "generators_kept", "marks", "seed_like_torch"]

# The one switch between direct and published access; an environment variable, because workers inherit those.
_SWITCH = "REKINDLE_DIRECT_RNG"


def generators(direct: bool) -> tuple[GlobalGenerator, ...]:
    """All three generators; accessed directly only where the self-tests of `direct_rng` pass."""
    python = direct_rng.direct_python() if direct else None
    numpy = direct_rng.direct_numpy() if direct else None
    return python or PythonGenerator(), numpy or NumPyGenerator(), TorchGenerator()


GENERATORS = generators(direct=os.environ.get(_SWITCH, "1") != "0")


def marks() -> tuple[object, ...]:
    """The marks of all three: equal before and after a piece of code only if it drew nothing."""
    return _MARKS[0](), _MARKS[1](), _MARKS[2]()


_MARKS = [generator.mark for generator in GENERATORS]


def seed_like_torch(base_seed: int, worker: int) -> None:
    """Seed all three as torch does in a worker that starts."""
    random.seed(base_seed + worker)
    torch.default_generator.manual_seed(base_seed + worker)
    np.random.seed(_utils.worker._generate_state(base_seed, worker))  # type: ignore[no-untyped-call]


@contextmanager
def generators_kept(generators: tuple[RandomSource, ...]) -> Iterator[None]:
    """A context after which these generators are as they were before.

    No other thread is within one at the same time.
    """
    if not generators:
        yield
        return
    with sole_use():
        restores = [generator.save() for generator in generators]
        try:
            yield
        finally:
            for restore in restores:
                restore()
