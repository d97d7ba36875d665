"""Datasets for trainers of other libraries, and what must stay with a loader that they make again."""

import importlib
import warnings

import torch
from torch.utils.data import Dataset

from bad_samples import Plain

OWN_ARGUMENTS = {
    "seed": 17,
    "executor": "processes",
    "on_error": "substitute",
    "error_budget": 0.5,
}


class Line(Plain):
    """Points on a line; some cannot be read."""

    def __init__(self, size=32, bad=()):
        super().__init__(bad, size)

    def __getitem__(self, index):
        x = torch.tensor([super().__getitem__(index) / self.size])
        return x, 2 * x + 1, index


def own_arguments(loader):
    return {name: getattr(loader, name) for name in OWN_ARGUMENTS}


class Noisy(Dataset):
    """Samples that draw."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, torch.rand(())


def import_frameworks():
    """Import them for some tests only: a process with all that they import takes longer to fork."""
    with warnings.catch_warnings():  # What these libraries import is not ours to mend.
        warnings.simplefilter("ignore")
        for name in ("light_torchvision", "lightning_fit", "accelerate.data_loader"):
            importlib.import_module(name)
        importlib.import_module("timm.data.distributed_sampler")


def updated(framework, loader, sampler):
    """The loader as a part of Lightning makes it again, with another sampler."""
    return importlib.import_module(f"lightning.{framework}.utilities.data")._update_dataloader(
        loader, sampler
    )
