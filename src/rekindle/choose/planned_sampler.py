"""Our own shuffled order as a torch sampler, for frameworks that re-create a loader from its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data import DataLoader, RandomSampler

from rekindle.choose.plain_sequence import shuffled_order

_STRETCH = 4096  # indices that are computed at once


class PlannedSampler(RandomSampler):
    """The indices of an epoch in the order that `plan_epoch` gives them; the next pass is the next epoch."""

    def __init__(self, data_source: Sized, seed: int) -> None:
        super().__init__(data_source)
        self.seed, self.epoch = seed, 0
        self.epoch_set = 0  # by a script, and not by a pass that ended

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`; so is the next epoch of the loader whose order this is."""
        self.epoch = self.epoch_set = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        order = shuffled_order(size, self.seed, self.epoch)
        self.epoch += 1
        stretches = (np.arange(start, min(start + _STRETCH, size)) for start in range(0, size, _STRETCH))
        return (index for stretch in stretches for index in order.forward(stretch).tolist())


def show_order(loader: DataLoader[object], seed: int) -> None:
    """Let `loader.sampler` give our order, for frameworks that re-create a loader from its parts."""
    sampler = PlannedSampler(loader.dataset, seed)  # type: ignore[arg-type]
    vars(loader)["sampler"] = sampler  # torch's loader lets nobody assign it.
    if loader.batch_sampler is not None:
        loader.batch_sampler.sampler = sampler  # type: ignore[attr-defined]


def set_epoch_within(sampler: object, epoch: int) -> None:
    """Make a sampler of ours within this one, however it is wrapped, begin with `epoch`."""
    while sampler is not None and not isinstance(sampler, PlannedSampler):
        sampler = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
    if sampler is not None:
        sampler.epoch = epoch
