"""Takes batches apart: what was loaded, and which views of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def samples_of(batch: Any) -> list[tuple[int, int, int]]:
    """(index, label, view) of each sample of a batch of any shape."""
    if isinstance(batch, dict) and "samples" in batch:
        return samples_of(batch["samples"])
    if isinstance(batch, dict):
        return _columns(batch["index"], batch["label"], batch["view"])
    if isinstance(batch, np.ndarray):
        batch = torch.from_numpy(batch)
    if isinstance(batch, torch.Tensor):
        return [tuple(row) for row in batch.view(-1, 3).tolist()]
    if _is_sample(batch):
        return _columns(*batch)
    return [sample for one in batch for sample in samples_of(one)]


def _is_sample(batch: Any) -> bool:
    if len(batch) != 3 or not all(isinstance(part, int | torch.Tensor) for part in batch):
        return False
    return all(not isinstance(part, torch.Tensor) or part.ndim <= 1 for part in batch)


def _columns(*columns: Any) -> list[tuple[int, int, int]]:
    rows = [torch.as_tensor(column).view(-1).tolist() for column in columns]
    return list(zip(*rows, strict=True))


def without_views(batch: Any) -> Any:
    """The batch with 0 in the place of every view."""
    if isinstance(batch, dict) and "samples" in batch:
        return {**batch, "samples": without_views(batch["samples"])}
    if isinstance(batch, dict):
        return {**batch, "view": _zero(batch["view"])}
    if isinstance(batch, torch.Tensor | np.ndarray):
        plain = batch.clone() if isinstance(batch, torch.Tensor) else batch.copy()
        plain[..., 2] = 0
        return plain
    if _is_sample(batch):
        return type(batch)([*batch[:2], _zero(batch[2])])
    return type(batch)(without_views(one) for one in batch)


def _zero(view: Any) -> Any:
    return torch.zeros_like(view) if isinstance(view, torch.Tensor) else type(view)(0)


def views_of(epochs: list[list[tuple[str, Any]]]) -> Iterator[int]:
    """Every view of some epochs, in order."""
    for events in epochs:
        for kind, batch in events:
            if kind == "batch":
                yield from (view for _, _, view in samples_of(batch))
