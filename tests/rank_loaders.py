"""Datasets of numbers, and loaders over them for all ranks of a world."""

import torch
from torch.utils.data import Dataset

import rekindle as rk


class Numbers(Dataset):
    """Sample i is i."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return index


class Drawn(Numbers):
    """Samples that show their view: what each draws."""

    def __getitem__(self, index):
        return index, torch.rand(())


def loaders_of(world, dataset, batch_size, state=None, **arguments):
    """A loader for each rank; with a state, each goes on from there."""
    loaders = [rk.DataLoader(dataset, batch_size, shard=(rank, world), **arguments) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    return loaders
