"""What is known of the batch just handed over."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.run.tickets import Filled, Made
from rekindle.ship.unpack import good_rows


class BatchInfo:
    """The batch that the loader yielded last: which samples, of what weight, how fresh.

    The tensors have one entry a sample, in the order of the batch's rows.
    """

    def __init__(self, ready: Filled | Made) -> None:
        self._order, self._ids, self._good = ready.order, ready.ids, good_rows(ready)
        self.epoch, self.step = ready.order.epoch, ready.order.step
        self._fresh = None if ready.fresh is None else np.asarray(ready.fresh)

    def __repr__(self) -> str:
        return f"BatchInfo(epoch={self.epoch}, step={self.step}, ids={self.ids.tolist()})"

    @cached_property
    def ids(self) -> torch.Tensor:
        """The samples' ids: their indices, or their place in the epoch where those are no integers."""
        return self._tensor(self._ids)

    @cached_property
    def weights(self) -> torch.Tensor:
        """What each sample counts for in the loss: 1, unless samples are chosen by importance."""
        return self._tensor(self._order.weights)

    @cached_property
    def fresh(self) -> torch.Tensor:
        """Which samples were made anew for this batch, and not reused."""
        fresh = self._fresh
        if fresh is None:
            return self._tensor(self._order.fresh)
        return self._tensor(fresh) if len(fresh) == len(self._order.indices) else torch.from_numpy(fresh)

    def _tensor(self, values: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values.copy() if self._good is None else values[self._good])
