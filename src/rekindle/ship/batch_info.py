"""`loader.batch`: which samples the batch just yielded holds."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.choose.batch_orders import YieldedBatch
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch
from rekindle.ship.unpack import good_rows

Value = TypeVar("Value", bound=np.generic)


class BatchInfo:
    """The batch that the loader yielded last: which samples, of what weight, how fresh.

    The tensors have one entry a sample, in the order of the batch's rows.

    Example:
        >>> import rekindle as rk
        >>> loader = rk.DataLoader(range(4), batch_size=2)
        >>> for batch in loader:
        ...     print(batch.tolist(), loader.batch.ids.tolist(), loader.batch.weights.tolist())
        [0, 1] [0, 1] [1.0, 1.0]
        [2, 3] [2, 3] [1.0, 1.0]
        >>> loader.batch
        BatchInfo(epoch=0, step=1, ids=[2, 3])

    """

    def __init__(self, ready: SlotBatch | CollatedBatch) -> None:
        self.epoch, self.step = ready.order.epoch, ready.order.step
        # Without the value: keeping this object does not keep the batch's memory.
        self._ready = CollatedBatch(ready.order, ready.ids, None, ready.bad, fresh=ready.fresh)

    def __repr__(self) -> str:
        return f"BatchInfo(epoch={self.epoch}, step={self.step}, ids={self.ids.tolist()})"

    @cached_property
    def ids(self) -> torch.Tensor:
        """The samples' ids: their indices, or their positions in the epoch where those are no integers."""
        return torch.from_numpy(yielded(self._ready).ids.copy())

    @cached_property
    def weights(self) -> torch.Tensor:
        """The weight of each sample in the loss: 1, unless samples are chosen by importance."""
        return torch.from_numpy(_present(self._ready.order.weights, good_rows(self._ready)).copy())

    @cached_property
    def fresh(self) -> torch.Tensor:
        """Which samples were recomputed for this batch, and not reused.

        It is what happened: a sample that was planned to be reused, and was not in the cache, is fresh. With
        `Echo`, it is the first of each sample's repeats, whatever the cache held.
        """
        return torch.from_numpy(yielded(self._ready).fresh.copy())


def yielded(ready: SlotBatch | CollatedBatch) -> YieldedBatch:
    """What the training loop got: the order without the samples that could not be loaded."""
    rows = good_rows(ready) if ready.bad else None
    order = ready.order
    planned = _present(order.fresh, rows)
    recomputed = planned if ready.fresh is None else _reported(ready.fresh, len(order.indices), rows)
    echoed = order.last_uses is not None
    if not echoed and isinstance(order.generations, int):  # Repeated batches and streams: no plan knows.
        planned = recomputed
    fresh = planned if echoed else recomputed
    return YieldedBatch(order, _present(ready.ids, rows), fresh, planned, recomputed, rows)


def _reported(fresh: list[bool], ordered: int, rows: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """What workers report of the rows that are in the batch."""
    reported = np.asarray(fresh, dtype=np.bool_)
    return _present(reported, rows) if len(reported) == ordered else reported


def _present(values: NDArray[Value], rows: NDArray[np.int64] | None) -> NDArray[Value]:
    """The values of the rows that are in the batch."""
    return values if rows is None else values[rows]
