"""The generators that a dataset or its transforms hold: Albumentations' own, `self.rng = default_rng(0)`, …

Every worker has a copy of them in the same state, so with torch's loader two workers draw the same numbers,
and every epoch draws them again. Here they are seeded from the sample's key, as the global ones are. Where
they are looked for: `near_objects`.
"""

from __future__ import annotations

import random
import warnings
import zlib
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.analysis.near_objects import held_objects
from rekindle.core.analysis.object_state import GENERATORS
from rekindle.core.public_rng import (
    NumPyGenerator,
    OwnNumPyGenerator,
    OwnTorchGenerator,
    PythonGenerator,
    RandomSource,
    Restore,
    Seeder,
)

MOST_GENERATORS = 256  # To seed one takes up to 30 µs, and all of them are seeded for each sample.


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
    found = [(path, value) for path, value in held_objects(*roots) if issubclass(type(value), GENERATORS)]
    sources = [(path, source, value) for path, value in found if (source := _source(value)) is not None]
    if len(sources) > MOST_GENERATORS:
        warnings.warn(
            f"the dataset holds {len(sources)} random generators or more, of which {MOST_GENERATORS} are "
            "seeded for each sample; what is drawn from the others depends on the worker and on what it "
            "loaded before. Let the dataset and its transforms share one generator, or draw from `random`, "
            "`numpy.random` or torch's generator",
            stacklevel=2,
        )
    paths = sorted(path for path, _, _ in sources)
    shared = {path for path, after in pairwise(paths) if path == after}
    return tuple(
        # In a set, whose order is another in each process, they are told apart by their states.
        HeldGenerator(f"{path} {source.mark()!r}" if path in shared else path, source, value)
        for path, source, value in sources[:MOST_GENERATORS]
    )


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
