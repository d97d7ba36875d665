"""Trains a small model through the loader, to choose samples for a large one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset

from rekindle.choose.importance import Uniform, write_hardness
from rekindle.loader import DataLoader


def train_proxy(
    model: nn.Module,
    dataset: Dataset[Any],
    file: str | Path,
    *,
    epochs: int = 5,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    device: str | torch.device = "cpu",
    batch_size: int = 128,
    seed: int = 0,
    **loader: Any,
) -> None:
    """Train a classifier on (input, class) samples, and write how hard each was to `file`.

    `rekindle.SelectionViaProxy(file)` chooses by it. Afterwards `model` is trained.

    Args:
        model: The proxy: a small model that gives logits.
        dataset: The samples that are to be chosen from, in their order.
        file: Where to write the scores of all samples, by all three criteria.
        epochs: How long the proxy trains.
        optimizer: Makes one of the model's parameters; None for SGD with momentum.
        device: Where the proxy trains.
        batch_size: Of its batches.
        seed: Of its loader.
        loader: Further arguments of the loader (`num_workers`, say).

    """
    model.to(device)
    step = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9))
    optimiser = step(model.parameters())
    training: DataLoader[Any] = DataLoader(
        dataset, batch_size, shuffle=True, seed=seed, importance=Uniform(), **loader
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
    assert training._adaptive is not None
    forgotten = training._adaptive.scores.forgotten
    training.close()
    least_confidence, entropy = _uncertainty(
        model, DataLoader(dataset, batch_size, seed=seed, **loader), device, len(forgotten)
    )
    write_hardness(file, {"least_confidence": least_confidence, "entropy": entropy, "forgetting": forgotten})


@torch.no_grad()
def _uncertainty(model: nn.Module, loader: DataLoader[Any], device: Any, size: int) -> tuple[Any, Any]:
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
