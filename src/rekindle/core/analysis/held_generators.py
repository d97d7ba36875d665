"""The generators that a dataset or its transforms hold: Albumentations' own, `self.rng = default_rng(0)`, …

Every worker has a copy of them in the same state, so with torch's loader two workers draw the same numbers,
and every epoch draws them again. Here they are seeded from the sample's key, as the global ones are. They are
looked for without running any code of the user's: in attributes, containers, closures and classes, and among
the globals that functions of the user's read.
"""

from __future__ import annotations

import random
import zlib

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.analysis.object_state import GENERATORS, near_objects
from rekindle.core.public_rng import (
    NumPyGenerator,
    OwnNumPyGenerator,
    OwnTorchGenerator,
    PythonGenerator,
    RandomSource,
    Restore,
    Seeder,
)


class HeldGenerator:
    """A generator found at `path`; others found elsewhere draw other numbers for the same sample."""

    def __init__(self, path: str, source: RandomSource, generator: object) -> None:
        self.generator = generator
        self._key = zlib.crc32(path.encode())
        self.mark, self._seeder, self._save = source.mark, source.seeder, source.save

    def seeder(self, seeds: NDArray[np.uint64]) -> Seeder:
        """A function that seeds the generator with the seed of a row."""
        return self._seeder(counter_rng.split(seeds, self._key))

    def save(self) -> Restore:
        """A function that restores the state as it is now."""
        return self._save()


def held_generators(*roots: object) -> tuple[HeldGenerator, ...]:
    """The generators that these objects hold, apart from the global ones; the same in every copy of them."""
    # By the type: `isinstance` would ask the object for its `__class__`.
    found = [(path, value) for path, value in near_objects(*roots) if issubclass(type(value), GENERATORS)]
    sources = ((path, _source(value), value) for path, value in found)
    return tuple(HeldGenerator(path, source, value) for path, source, value in sources if source is not None)


def _source(value: object) -> RandomSource | None:
    """A generator as one that can be seeded, if it can."""
    if isinstance(value, random.Random):
        return None if isinstance(value, random.SystemRandom) else PythonGenerator(value)
    if isinstance(value, np.random.RandomState):
        return NumPyGenerator(value, lambda: value._bit_generator)
    if isinstance(value, np.random.Generator):
        return OwnNumPyGenerator(value)
    if isinstance(value, torch.Generator):
        return OwnTorchGenerator(value) if value.device.type == "cpu" else None
    return None
