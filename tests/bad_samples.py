"""Datasets of which some samples are bad, and loaders that pass over them."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

import rekindle as rk


class BadFileError(Exception):
    pass


class Plain(Dataset):
    """Numbers that draw nothing, some of which are bad."""

    def __init__(self, bad=(), size=200):
        self.bad, self.size = frozenset(bad), size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            raise BadFileError(f"cannot decode file {index}")
        return index


class SomeBad(Plain):
    """Tuples with text; the bad ones raise after they have drawn."""

    def __getitem__(self, index):
        noise = random.random() + float(np.random.random_sample()) + float(torch.rand(()))
        return torch.tensor([float(super().__getitem__(index)), noise]), f"file {index}"


def collate_with_noise(samples):
    return default_collate(samples), torch.rand(2)


BAD = (17, 80, 81, 199)
RUNNERS = {
    "0 workers": {},
    "1 process": {"num_workers": 1},
    "2 processes": {"num_workers": 2},
    "2 threads": {"num_workers": 2, "executor": "threads"},
    "out of 3": {"num_workers": 3, "prefetch_factor": 1},
}
KINDS = {
    "tuples": {},
    "collated": {"collate_fn": collate_with_noise},
    "single": {"batch_size": None},
    "sequential": {"shuffle": False},
}


def make(on_error, dataset=None, **options):
    dataset = SomeBad(BAD) if dataset is None else dataset
    arguments = {"batch_size": 8, "shuffle": True, "seed": 5, **options}
    if on_error != "raise":
        arguments.setdefault("error_budget", 0.05)
    if arguments["batch_size"] is None:
        arguments["shuffle"] = False
    return rk.DataLoader(dataset, on_error=on_error, **arguments)


def indices(batches):
    """What the samples of batches of tuples were."""
    return [batch[0][:, 0].int().tolist() for batch in batches]
