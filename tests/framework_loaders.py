"""Datasets for trainers of other libraries, and what must stay with a loader that they make again."""

import torch
from torch.utils.data import (
    Dataset,
)

OWN_ARGUMENTS = {
    "seed": 17,
    "executor": "processes",
    "on_error": "substitute",
    "error_budget": 0.5,
}


class Line(Dataset):
    """Points on a line; some cannot be read."""

    def __init__(self, size=32, bad=()):
        self.size, self.bad = size, bad

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.bad:
            raise OSError(f"sample {index} is gone")
        x = torch.tensor([index / self.size])
        return x, 2 * x + 1, index


def own_arguments(loader):
    return {name: getattr(loader, name) for name in OWN_ARGUMENTS}


class Noisy(Dataset):
    """Samples that draw."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, torch.rand(())
