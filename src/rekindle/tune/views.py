"""Counts the distinct views of some samples that the training loop really saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle import keys
from rekindle.reuse.diversity import view_hash

_LEAST_WATCHED, _MOST_WATCHED = 8, 32  # samples
_SHARE_WATCHED = 1 / 128  # of the data set: the training loop waits while a view is hashed


class Views:
    """Watches a few samples, chosen at random, and hashes what the training loop gets of them."""

    def __init__(self, size: int, seed: int) -> None:
        watched = min(max(int(size * _SHARE_WATCHED), _LEAST_WATCHED), _MOST_WATCHED)
        self._watched = np.sort(keys.permutation(size, seed, 0)[:watched])
        self._seen: dict[int, set[bytes]] = {int(id_): set() for id_ in self._watched}
        self._hashed = 0
        self.samples = 0  # that the training loop got
        self.fresh = 0  # of them, that were made anew

    def note(self, ids: NDArray[np.int64], fresh: int, batch: Any) -> None:
        """Look at a batch whose rows are these samples."""
        self.samples += len(ids)
        self.fresh += fresh
        if not len(self._watched):
            return
        places = np.searchsorted(self._watched, ids).clip(max=len(self._watched) - 1)
        rows = np.flatnonzero(self._watched[places] == ids)
        if not len(rows):
            return
        images = _first_tensor(batch, len(ids))
        if images is None:
            return
        for row in rows:
            self._seen[int(ids[row])].add(view_hash(images[row]))
            self._hashed += 1

    @property
    def fresh_share(self) -> float:
        return self.fresh / self.samples if self.samples else 0.0

    def counted(self) -> tuple[float, float] | None:
        """Distinct views and all views of a watched sample, on average; None if none was seen."""
        seen = [len(views) for views in self._seen.values() if views]
        return (sum(seen) / len(seen), self._hashed / len(seen)) if seen else None


def _first_tensor(batch: Any, rows: int) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() and len(batch) == rows else None
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for part in batch:
            found = _first_tensor(part, rows)
            if found is not None:
                return found
    return None
