"""Small arrays in memory.

Question: How much faster are small samples, where the loader's own work is most of the work?

Method: 50,000 arrays of 32×32×3 bytes (the size of CIFAR-10) and labels, from a plain Python
`__getitem__`, batched by 128, by 2 workers of each loader; once as they are, and once flipped at
random with NumPy. One epoch with a new loader, from the start of its workers to the last batch.

    python -m benchmarks small_arrays

Reading: samples/s, more is better. The dataset does next to nothing, so this is the cost of a
loader: calls, collating, moving batches between processes, and with the flip also seeding and
drawing random numbers. The bars are ≥ 2.5× as they are and ≥ 2× flipped.
"""

from __future__ import annotations

import numpy as np
from torch.utils.data import Dataset

from benchmarks.answer import Bar, Comparison, compare
from benchmarks.epoch_rate import epoch_rates

SAMPLES, SHAPE = 50_000, (32, 32, 3)
WORKERS, BATCH_SIZE = 2, 128


class SmallArrays(Dataset[tuple[np.ndarray, int]]):
    """Random bytes shaped as CIFAR-10's images, with labels."""

    def __init__(self, samples: int = SAMPLES) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
        self.labels = rng.integers(0, 10, samples).tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index], self.labels[index]


class FlippedArrays(SmallArrays):
    """The same, half of them mirrored, drawn from NumPy's global generator."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        image = self.images[index]
        if np.random.random() < 0.5:
            image = np.ascontiguousarray(image[:, ::-1])
        return image, self.labels[index]


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Samples a second with each loader, as they are and flipped; `data` is not used."""
    del data
    settings = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": WORKERS}
    size = f"{SAMPLES:,} arrays of 32×32×3 bytes; batch {BATCH_SIZE}, {WORKERS} workers"
    return [
        compare(
            f"{size}; {variant}",
            "samples/s",
            epoch_rates(dataset, rounds, **settings),
            {"rekindle": [bar]},
        )
        for variant, dataset, bar in (
            ("as they are", SmallArrays(), Bar("≥", 2.5)),
            ("flipped at random", FlippedArrays(), Bar("≥", 2.0)),
        )
    ]
