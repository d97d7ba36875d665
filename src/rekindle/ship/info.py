"""What is known of the batch just handed over."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.run.tickets import Filled, Made
from rekindle.ship.unpack import good_rows

Value = TypeVar("Value", bound=np.generic)


class BatchInfo:
    """The batch that the loader yielded last: which samples, of what weight, how fresh.

    The tensors have one entry a sample, in the order of the batch's rows.
    """

    def __init__(self, ready: Filled | Made) -> None:
        self.epoch, self.step = ready.order.epoch, ready.order.step
        # Who keeps this does not keep the batch's memory.
        self._ready = Made(ready.order, ready.ids, None, ready.bad, fresh=ready.fresh)

    def __repr__(self) -> str:
        return f"BatchInfo(epoch={self.epoch}, step={self.step}, ids={self.ids.tolist()})"

    @cached_property
    def ids(self) -> torch.Tensor:
        """The samples' ids: their indices, or their place in the epoch where those are no integers."""
        return torch.from_numpy(ids_of(self._ready).copy())

    @cached_property
    def weights(self) -> torch.Tensor:
        """What each sample counts for in the loss: 1, unless samples are chosen by importance."""
        return torch.from_numpy(_present(self._ready, self._ready.order.weights).copy())

    @cached_property
    def fresh(self) -> torch.Tensor:
        """Which samples were made anew for this batch, and not reused."""
        return torch.from_numpy(fresh_of(self._ready).copy())


def ids_of(ready: Filled | Made) -> NDArray[np.int64]:
    """The ids of a batch's samples, in the order of its rows."""
    return _present(ready, ready.ids)


def fresh_of(ready: Filled | Made) -> NDArray[np.bool_]:
    """Which of a batch's samples were made anew for it, in the order of its rows."""
    if ready.fresh is None:
        return _present(ready, ready.order.fresh)
    told = np.asarray(ready.fresh)
    return _present(ready, told) if len(told) == len(ready.order.indices) else told


def _present(ready: Filled | Made, values: NDArray[Value]) -> NDArray[Value]:
    """Those of an order's values whose rows are in the batch."""
    good = good_rows(ready)
    return values if good is None else values[good]
