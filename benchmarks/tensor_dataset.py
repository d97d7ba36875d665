"""Tensors in memory, without workers.

Question: Without workers, is a `TensorDataset` at least as fast as with torch, at any batch size?

Method: vectors of 32 floats with labels in torch's own `TensorDataset`, shuffled, no workers, batch
sizes from 1 to 256. One epoch with a new loader. Small batches have fewer samples in all, so that
each round takes about as long. The same vectors, in batches of 64, as a list of tensors and from the
`__getitem__` of a dataset that holds NumPy arrays.

    python -m benchmarks tensor_dataset

Reading: samples/s, more is better. With batches of 1 the cost of the loader for each batch shows;
with batches of 256, its cost for each sample. The bar is ≥ 1.0× at each size. The list and the arrays show
what it costs to make sure, for each batch, that nothing has drawn random numbers: there is no bar.
"""

from __future__ import annotations

import torch
from torch.utils.data import Dataset, TensorDataset

from benchmarks.answer import Bar, Comparison, compare
from benchmarks.epoch_rate import epoch_rates

SAMPLES_BY_BATCH_SIZE = {1: 20_000, 8: 60_000, 32: 100_000, 256: 100_000}


def make_dataset(samples: int) -> TensorDataset:
    """Random vectors of 32 floats, with labels."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(samples, 32, generator=generator)
    return TensorDataset(vectors, torch.randint(10, (samples,), generator=generator))


class Arrays(Dataset[object]):
    """Vectors and labels in NumPy arrays, which a `__getitem__` takes samples from."""

    def __init__(self, held: TensorDataset) -> None:
        self.vectors, self.labels = (tensor.numpy() for tensor in held.tensors)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> object:
        return self.vectors[index], self.labels[index]


def measure(rounds: int, data: str | None) -> list[Comparison]:
    """Samples a second with each loader, for each batch size; `data` is not used."""
    del data
    held = make_dataset(20_000)
    others = {"list of tensors": list(held.tensors[0]), "NumPy arrays": Arrays(held)}
    return [
        compare(
            f"TensorDataset of {samples:,} vectors; batch {batch_size}, no workers",
            "samples/s",
            epoch_rates(make_dataset(samples), rounds, batch_size=batch_size, shuffle=True),
            {"rekindle": [Bar("≥", 1.0)]},
        )
        for batch_size, samples in SAMPLES_BY_BATCH_SIZE.items()
    ] + [
        compare(
            f"{name}: 20,000 vectors; batch 64, no workers",
            "samples/s",
            epoch_rates(dataset, rounds, batch_size=64, shuffle=True),
            {},
        )
        for name, dataset in others.items()
    ]
