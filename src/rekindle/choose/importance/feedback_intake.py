"""Which samples a report of the training loop is about."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.choose.batch_orders import BatchOrder, YieldedBatch
from rekindle.choose.feedback import Feedback, report_length
from rekindle.core.script_lines import stacklevel_of_script
from rekindle.errors import ArgumentError


class FeedbackIntake:
    """Adds reports to `feedback`: on the samples that they name, or on the batch just yielded.

    A batch that is processed in pieces may be reported in the same pieces, in order.
    """

    def __init__(self, size: int) -> None:
        self.feedback = Feedback()
        self._size = size
        self._order: BatchOrder | None = None  # the batch that reports without ids are about,
        self._size_of_batch = 0  # how many samples it has,
        self._reported = 0  # and how many of them have been reported
        self._has_warned = False  # that a batch was reported in part

    def report(
        self,
        last: YieldedBatch | None,
        uses: NDArray[np.integer],
        losses: object,
        logits: object,
        targets: object,
        ids: object,
    ) -> None:
        """Take a report; without `ids` on the batch yielded `last`. `uses` is `Scores.turns`."""
        if ids is not None:
            self.feedback.add(self._checked(ids), 0, losses, logits, targets)
            return
        if last is None:
            raise ArgumentError(
                "feedback without ids= is about the batch just yielded, and none has been yet"
            )
        rows = self._next_rows(last, report_length(losses, logits))
        if isinstance(losses, torch.Tensor) and losses.dim() == 0 and len(last.ids) > 1:
            raise ArgumentError(
                f"feedback: losses is a single number for a batch of {len(last.ids)} samples. Give one loss "
                "per sample, such as cross_entropy(…, reduction='none')."
            )
        age: NDArray[np.int64] | int = 0
        generations = last.order.generations
        if not isinstance(generations, int):  # They count earlier uses, as this epoch's choice does.
            present = generations if last.rows is None else generations[last.rows]
            age = np.maximum(uses[last.ids] - 1 - present, 0)[rows]
        self.feedback.add(last.ids[rows], age, losses, logits, targets)
        self._reported = rows.stop  # Only now: a report that is refused was none.

    def _checked(self, ids: object) -> torch.Tensor:
        numbers = torch.as_tensor(ids).reshape(-1)
        if numbers.is_floating_point() or numbers.dtype == torch.bool:
            raise ArgumentError(f"feedback: ids must be integers, but got {numbers.dtype}")
        if numbers.device.type == "cpu" and len(numbers):  # On a device, looking at them would wait for it.
            lowest, highest = int(numbers.min()), int(numbers.max())
            if lowest < 0 or highest >= self._size:
                raise ArgumentError(
                    f"feedback: ids must be from 0 to {self._size - 1}, but got {lowest} to {highest}"
                )
        return numbers.clone()  # They are read at the end of the epoch: the training loop may reuse its own.

    def _next_rows(self, last: YieldedBatch, count: int) -> slice:
        """The samples of the batch that a report of `count` values is about: those not reported yet."""
        size = len(last.ids)
        if last.order is not self._order:
            self._warn_of_part()
            self._order, self._size_of_batch, self._reported = last.order, size, 0
        if count > size:
            raise ArgumentError(
                f"feedback: {count} values for a batch of {size} samples. Give one per sample, or name the "
                "samples with ids=."
            )
        if self._reported + count > size:
            raise ArgumentError(
                f"feedback: {count} values, but {self._reported} of this batch's {size} samples have been "
                "reported already. Report each sample once, or name the samples with ids=."
            )
        return slice(self._reported, self._reported + count)

    def _warn_of_part(self) -> None:
        """Warn, once, if only a part of the batch before was reported: for the line that reports."""
        if 0 < self._reported < self._size_of_batch and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"feedback: {self._reported} values were reported on a batch of {self._size_of_batch} "
                "samples, and were taken for those of its first samples. If they are those of others, as in "
                "losses[mask], name them: feedback(losses[mask], ids=loader.batch.ids[mask]).",
                stacklevel=stacklevel_of_script(),
            )
