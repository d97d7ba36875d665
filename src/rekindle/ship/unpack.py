"""A filled slot becomes the batch that the training loop gets."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.samples import Batch
from rekindle.run import batch_layout, batch_pickle
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch


def unpack(ready: SlotBatch | CollatedBatch) -> Batch:
    """The batch: tensors on the slot's own memory, nothing copied."""
    if isinstance(ready, CollatedBatch):
        return ready.value
    if ready.layout is None:
        return batch_pickle.decode(ready.memory, ready.sizes)
    good = good_rows(ready)
    leaves: list[torch.Tensor | list[str | bytes] | None] = [
        *ready.layout.tensors(ready.memory, len(ready.order.indices))
    ]
    if good is not None:
        rows = torch.from_numpy(good)
        leaves = [leaf.index_select(0, rows) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    if ready.strings:
        columns = zip(*ready.strings, strict=True)
        leaves = [list(next(columns)) if leaf is None else leaf for leaf in leaves]
    return batch_layout.assemble(ready.layout.spec, leaves)


def good_rows(ready: SlotBatch | CollatedBatch) -> NDArray[np.int64] | None:
    """The rows of an order that are in the batch; None if all of them are."""
    if not ready.bad:
        return None
    return np.delete(np.arange(len(ready.order.indices)), ready.bad)


def nbytes(batch: Batch) -> int:
    """The size of a batch's tensors, where it is a tensor, or a list, tuple or dict of tensors."""
    if isinstance(batch, torch.Tensor):
        return _tensor_nbytes(batch)
    if isinstance(batch, dict):
        batch = batch.values()
    elif not isinstance(batch, list | tuple):
        return 0
    return sum(_tensor_nbytes(part) for part in batch if isinstance(part, torch.Tensor))


def _tensor_nbytes(tensor: torch.Tensor) -> int:
    """The size of a tensor; 0 if it is sparse or nested: those do not say."""
    return tensor.nbytes if tensor.layout is torch.strided and not tensor.is_nested else 0
