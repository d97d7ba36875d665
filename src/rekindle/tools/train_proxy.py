"""`rekindle.train_proxy`: a small model, trained to choose samples for a large one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import Dataset

from rekindle.choose.importance import Uniform, write_hardness
from rekindle.choose.importance.method import Planned
from rekindle.choose.scores import Scores
from rekindle.core.samples import Sample
from rekindle.errors import ArgumentError
from rekindle.loader.dataloader import DataLoader


def train_proxy(
    model: nn.Module,
    dataset: Dataset[Sample],
    file: str | Path,
    *,
    epochs: int = 5,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    device: str | torch.device = "cpu",
    batch_size: int = 128,
    seed: int = 0,
    **loader: Any,
) -> None:
    """Train a classifier on (input, class) samples, and write how hard each was to `file`.

    `rekindle.SelectionViaProxy(file)` selects samples by it. `model` is trained in place.

    Args:
        model: The proxy: a small model that returns logits.
        dataset: The samples to select from.
        file: Where to write the scores of all samples, by all three criteria.
        epochs: How many epochs the proxy trains.
        optimizer: A function that makes an optimizer of the model's parameters; None for SGD with momentum.
        device: Where the proxy trains.
        batch_size: The proxy's batch size.
        seed: The seed of its loader.
        loader: Further arguments of its loader, such as `num_workers`.

    Example:
        >>> import os, tempfile
        >>> import torch
        >>> import rekindle as rk
        >>> inputs, classes = torch.randn(64, 4), torch.arange(64) % 2
        >>> dataset = torch.utils.data.TensorDataset(inputs, classes)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rk.train_proxy(torch.nn.Linear(4, 2), dataset, f"{folder}/hardness.npz", epochs=1)
        ...     method = rk.SelectionViaProxy(f"{folder}/hardness.npz", keep=0.25)
        >>> loader = rk.DataLoader(dataset, batch_size=8, shuffle=True, importance=method)
        >>> sum(len(targets) for _, targets in loader)
        16

    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"train_proxy: model is {model!r}. Give a torch.nn.Module that returns logits.")
    model.to(device)
    step = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    optimiser = step(model.parameters())
    training: DataLoader[Sample] = DataLoader(
        dataset, batch_size, shuffle=True, seed=seed, importance=_Forgotten(), **loader
    )
    model.train()
    for _ in range(epochs):
        for inputs, targets in training:
            logits = model(inputs.to(device))
            loss = nn.functional.cross_entropy(logits, targets.to(device))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            training.feedback(logits=logits, targets=targets)
    assert training._parts.importance is not None
    forgotten = training._parts.importance.scores.forgotten
    training.close()
    least_confidence, entropy = _uncertainty(
        model, DataLoader(dataset, batch_size, seed=seed, **loader), device, len(forgotten)
    )
    write_hardness(file, {"least_confidence": least_confidence, "entropy": entropy, "forgetting": forgotten})


class _Forgotten(Uniform):
    """All samples, of which it is kept how often each was forgotten."""

    reads = frozenset({"correct", "forgotten"})

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """All samples; beside `reads`, which is that of the class with the `plan`."""
        return super().plan(epoch, scores)


@torch.no_grad()
def _uncertainty(
    model: nn.Module, loader: DataLoader[Sample], device: str | torch.device, size: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """1 − the largest probability, and the entropy of the probabilities, for each sample."""
    least_confidence, entropy = np.zeros(size, np.float32), np.zeros(size, np.float32)
    model.eval()
    for inputs, _ in loader:
        log_p = torch.log_softmax(model(inputs.to(device)).float(), 1)
        ids = loader.batch.ids.numpy()
        least_confidence[ids] = (1 - log_p.amax(1).exp()).cpu().numpy()
        entropy[ids] = -(log_p.exp() * log_p).sum(1).cpu().numpy()
    loader.close()
    return least_confidence, entropy
