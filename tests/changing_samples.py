"""A dataset whose transform, labels and other attributes a test can change between two epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset

EPOCHS, SAMPLES = 2, 12


class Scale:
    def __init__(self, by: float = 1) -> None:
        self.by = by

    def __call__(self, value: float) -> float:
        return value * self.by


class Steps:
    def __init__(self, steps: list[Callable[[float], float]]) -> None:
        self.steps = steps

    def __call__(self, value: float) -> float:
        for step in self.steps:
            value = step(value)
        return value


class Samples(Dataset[Any]):
    """Numbers, after a transform, with labels; `rest` is whatever a test needs."""

    factor = 1

    def __init__(self, transform: Any = None, labels: Any = None, **rest: Any) -> None:
        self.transform = transform or Scale()
        self.labels = [0] * SAMPLES if labels is None else labels
        self.__dict__.update(rest)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return float(self.transform(index)), int(self.labels[index])


def plain(batch: Any) -> Any:
    """A batch with lists in place of its tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(one) for one in batch] if isinstance(batch, list | tuple) else batch
