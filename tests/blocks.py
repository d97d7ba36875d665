"""Datasets of blocks of bytes, and loaders of every kind over them."""

import numpy as np
import torch
from torch.utils.data import Dataset, default_collate

import rekindle as rk


class Blocks(Dataset):
    """Samples of four kilobytes; no two alike."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((1000,), index, dtype=torch.int32), np.full(7, index)


class Ragged(Dataset):
    """Sequences that get longer and longer."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((10 + index * index,), index)


def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def keep_apart(samples):
    return {"all": samples, "array": np.concatenate([sample.numpy() for sample in samples])}


def through_default(samples):
    return [default_collate(samples)]


RUNNERS = {
    "inline": {},
    "processes": {"num_workers": 2, "executor": "processes"},
    "threads": {"num_workers": 2, "executor": "threads"},
}
KINDS = {
    "rows": (Blocks(), None),
    "padded": (Ragged(), pad),
    "lists": (Ragged(), keep_apart),
    "collated": (Blocks(), through_default),
}


def make(kind, runner="processes", **options):
    dataset, collate_fn = KINDS[kind]
    return rk.DataLoader(dataset, 8, collate_fn=collate_fn, seed=1, **RUNNERS[runner], **options)
