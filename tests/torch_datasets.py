"""Datasets of every kind, and what compares our loader's batches with torch's."""

import multiprocessing
import os
import random
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import (
    Dataset,
    IterableDataset,
    get_worker_info,
)

import rekindle as rk
from same import same

Torch = torch.utils.data.DataLoader
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
Pair = namedtuple("Pair", ["image", "name"])


# Datasets.


class Shaped(Dataset):
    """Samples of a kind of structure, all derived from their index."""

    def __init__(self, kind="tensor", size=23):
        self.kind, self.size = kind, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        image = torch.full((3, 2), float(index))
        return {
            "tensor": lambda: image,
            "tuple": lambda: (image, index),
            "list": lambda: [np.full(2, index, np.int16), float(index)],
            "named tuple": lambda: Pair(image, f"{index}.png"),
            "dict": lambda: {"image": image, "id": index, "name": f"{index}", "ok": index > 3},
            "nested": lambda: ({"a": (image, [index, str(index)])}, Pair((image, b"x"), "n")),
            "string": lambda: f"sample {index}",
            "bytes": lambda: b"%d" % index,
            "bool": lambda: index % 2 == 0,
            "float": lambda: index / 2,
            "numpy scalar": lambda: np.float32(index),
            "array": lambda: np.full((2, 2), index, np.uint8),
            "bfloat16": lambda: image.to(torch.bfloat16),
            "complex": lambda: image * 1j,
            "empty": lambda: torch.empty(0, 3),
            "large": lambda: torch.full((64, 64), index),
            "mixed types": lambda: index if index < 6 else float(index),
            "ordered dict": lambda: OrderedDict(a=index),
        }[self.kind]()


KINDS = [
    "tensor", "tuple", "list", "named tuple", "dict", "nested", "string", "bytes", "bool", "float",
    "numpy scalar", "array", "bfloat16", "complex", "empty", "large", "ordered dict",
]  # fmt: skip


class Ragged(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.arange(index + 1)


class Keyed(Dataset):
    """A dataset that is asked for other things than numbers."""

    def __len__(self):
        return 4

    def __getitem__(self, key):
        return f"{type(key).__name__} {key}"


class AtOnce(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError("asked for one sample alone")

    def __getitems__(self, indices):
        return [(index, len(indices)) for index in indices]


class Broken(Dataset):
    """Fails at some samples."""

    def __init__(self, bad=(5,), error=ValueError):
        self.bad, self.error = bad, error

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error(f"cannot read number {index}")
        return index


class OddError(Exception):
    """An exception that cannot be made from one string."""

    def __init__(self, code, text):
        super().__init__(code, text)


class OddlyBroken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise OddError(index, "odd")


class WhoAmI(Dataset):
    """Samples that say which worker made them."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return index, -1, -1, -1
        assert info.dataset is not None
        return index, info.id, info.num_workers, info.seed


class Held(Dataset):
    """The first sample is not ready before `allowed` is set."""

    def __init__(self, size=4):
        self.size = size
        self.allowed = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == 0:
            assert self.allowed.wait(3600)
        return index


class WithEpoch(Dataset):
    """A dataset that the training loop changes between epochs."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.epoch * 100 + index


class Drawing(Dataset):
    """Draws from all three global generators, as foreign transforms do."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(2)


class Stream(IterableDataset):
    def __init__(self, size=10):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class Sharded(IterableDataset):
    """Each worker has its share, the first a longer one."""

    def __init__(self, sizes=(11, 4)):
        self.sizes = sizes

    def __iter__(self):
        info = get_worker_info()
        if info is None:
            return iter(range(sum(self.sizes)))
        return iter(range(info.id * 100, info.id * 100 + self.sizes[info.id]))


class BrokenStream(IterableDataset):
    def __iter__(self):
        yield 1
        yield 2
        raise KeyError("no third")


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


class OwnSampler:
    """Any iterable of indices will do."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def as_is(samples):
    return samples


def summed(samples):
    return {"sum": sum(samples), "samples": tuple(samples), "kind": type(samples).__name__}


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Bag:
    def __init__(self, samples):
        self.tensor = torch.stack(samples)

    def __eq__(self, other):
        return type(other) is Bag and torch.equal(self.tensor, other.tensor)

    __hash__ = None


class Numbered:
    """A worker_init_fn whose effect can be seen in samples."""

    def __call__(self, worker):
        os.environ["REKINDLE_TEST_WORKER"] = str(worker + 10)


class SeesEnvironment(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, int(os.environ.get("REKINDLE_TEST_WORKER", "-1"))


def fail_to_start(worker):
    raise OSError(f"worker {worker} found no disk")


# Helpers.

OF_WORKERS = {"num_workers", "persistent_workers", "prefetch_factor"}


def assert_same_epochs(dataset, epochs=2, **arguments):
    """The batches of some epochs, one loader after the other, are the same.

    Where workers cannot be told from each other, torch does it without: its batches are the same then.
    """
    theirs = arguments
    if not isinstance(dataset, IterableDataset) and "worker_init_fn" not in arguments:
        theirs = {name: value for name, value in arguments.items() if name not in OF_WORKERS}
    ours, theirs = rk.DataLoader(dataset, **arguments), Torch(dataset, **theirs)
    for _ in range(epochs):
        got, expected = list(ours), list(theirs)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert same(one, other), f"{one!r} is not {other!r}"


def seeded_epochs(make, epochs=2, seed_before=True):
    """The batches of a loader made under a fixed global seed, and what the generator is at the end."""
    if seed_before:
        torch.manual_seed(7)
    loader = make()
    if not seed_before:
        torch.manual_seed(7)
    batches = [list(loader) for _ in range(epochs)]
    return batches, torch.get_rng_state()
