"""Datasets, samplers and loaders to be interrupted."""

import io
import random
from itertools import islice

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

import rekindle as rk

STEPS = 6  # of an epoch of 22 samples in batches of 4


def through_a_file(state):
    """What a checkpoint makes of a state."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Draws(Dataset):
    """Dicts; samples draw from all three generators, some of them."""

    def __init__(self, size=22):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        x = torch.full((2,), float(index))
        if index % 3:
            x += random.random() + np.random.random_sample() + torch.rand(2)
        return {"x": x, "index": index}


class Counted(Dataset):
    """Knows which samples it was asked for, as long as that is in this process."""

    def __init__(self, size=22):
        self.size, self.asked = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.asked.append(index)
        return index


def shuffled(workers=0, dataset=None, seed=7, batch_size=4, **options):
    dataset = Draws() if dataset is None else dataset
    return rk.DataLoader(dataset, batch_size, shuffle=True, num_workers=workers, seed=seed, **options)


def indices_of(batches):
    return [batch["index"].tolist() if isinstance(batch, dict) else batch.tolist() for batch in batches]


class EveryThird(Sampler):
    """A sampler without a state of its own, deterministic and stateless."""

    def __iter__(self):
        return iter([*range(0, 22, 3), *range(1, 22, 3), *range(2, 22, 3)])

    def __len__(self):
        return 22


class DrawsItsOrder(Sampler):
    """A sampler without a state of its own, which draws from the global generators as it goes."""

    def __iter__(self):
        for _ in range(22):
            yield random.randrange(7) + int(np.random.randint(7)) + int(torch.randint(7, ()))

    def __len__(self):
        return 22


class Remembers(Sampler):
    """A sampler with a state, as torchdata's have it: its generator at the epoch's start, and its place."""

    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.start, self.place, self.resumed = self.generator.get_state(), 0, False

    def __iter__(self):
        if not self.resumed:
            self.start, self.place = self.generator.get_state(), 0
        self.resumed = False
        self.generator.set_state(self.start)
        return self.indices(torch.randperm(22, generator=self.generator).tolist()[self.place :])

    def indices(self, order):
        for index in order:
            self.place += 1
            yield index

    def __len__(self):
        return 22

    def state_dict(self):
        return {"start": self.start, "place": self.place}

    def load_state_dict(self, state):
        self.start, self.place, self.resumed = state["start"], state["place"], True


class RemembersBatches(Remembers):
    """The same for batches."""

    def indices(self, order):
        for start in range(0, len(order), 4):
            self.place += len(order[start : start + 4])
            yield order[start : start + 4]

    def __len__(self):
        return 6


class Batches:
    """A batch sampler that is no more than an iterable; its batches differ in size."""

    def __iter__(self):
        indices = iter(torch.randperm(21).tolist())
        for size in range(1, 7):
            yield list(islice(indices, size))

    def __len__(self):
        return 6


class Stream(IterableDataset):
    """Numbers dealt to the workers, unequal parts, each with a draw."""

    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for value in range(31):
            if (value // 4) % workers == number:
                yield value, random.random() + float(np.random.random_sample()) + float(torch.rand(()))
