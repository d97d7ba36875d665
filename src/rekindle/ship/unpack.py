"""A filled slot as the batch that the training loop gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.run import codec, layout
from rekindle.run.tickets import Filled, Made


def unpack(ready: Filled | Made) -> Any:
    """The batch: tensors on the slot's own memory, nothing copied."""
    if isinstance(ready, Made):
        return ready.value
    if ready.layout is None:
        return codec.decode(ready.memory, ready.sizes)
    leaves: list[Any] = list(ready.layout.tensors(ready.memory, len(ready.order.indices)))
    good = good_rows(ready)
    if good is not None:
        rows = torch.from_numpy(good)
        leaves = [leaf if leaf is None else leaf.index_select(0, rows) for leaf in leaves]
    if ready.strings:
        columns = zip(*ready.strings, strict=True)
        leaves = [list(next(columns)) if leaf is None else leaf for leaf in leaves]
    return layout.assemble(ready.layout.spec, leaves)


def good_rows(ready: Filled | Made) -> NDArray[np.int64] | None:
    """The rows of an order that are in the batch; None if all of them are."""
    if not ready.bad:
        return None
    return np.delete(np.arange(len(ready.order.indices)), ready.bad)


def nbytes(batch: Any) -> int:
    """How large the tensors of a batch are, as far as they are a sequence or a dict of tensors."""
    if isinstance(batch, torch.Tensor):
        return batch.nbytes
    if isinstance(batch, dict):
        batch = batch.values()
    elif not isinstance(batch, list | tuple):
        return 0
    return sum(part.nbytes for part in batch if isinstance(part, torch.Tensor))
