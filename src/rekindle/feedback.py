"""How the model did on the samples of a batch, as the training loop reports it.

A report costs a few small operations on the device where its tensors are. Nothing waits for that device
before the epoch's end, when all of an epoch's reports come over in one piece.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.choose.scores import Measured
from rekindle.errors import ArgumentError


class _Report(NamedTuple):
    ids: NDArray[np.int64] | torch.Tensor
    age: NDArray[np.int64] | int
    values: torch.Tensor  # (n,): losses. (3, n): losses, log P of the target, largest log P of another class.


class Feedback:
    """The reports of an epoch, until they are asked for."""

    def __init__(self) -> None:
        self._reports: list[_Report] = []
        self._batch: object = None  # the batch that reports without ids are about,
        self._used = 0  # and how many of its samples they have covered

    def add(
        self,
        ids: torch.Tensor | NDArray[np.int64],
        age: NDArray[np.int64] | int,
        losses: Any,
        logits: Any,
        targets: Any,
    ) -> None:
        """Keep a report on these samples; ArgumentError if it does not have one entry for each."""
        values = _values(losses, logits, targets)
        if values.shape[-1] != len(ids):
            raise ArgumentError(
                f"feedback: {values.shape[-1]} values for {len(ids)} samples. Give one a sample: compute the "
                "loss with reduction='none'."
            )
        self._reports.append(_Report(ids, age, values))

    def next_rows(self, batch: object, size: int, count: int) -> slice:
        """Which samples of a batch of `size` a report of `count` is about: those after the last report's.

        So a batch that is worked off in pieces may be reported in the same pieces.
        """
        if batch is not self._batch:
            self._batch, self._used = batch, 0
        if self._used + count > size:
            raise ArgumentError(
                f"feedback: {count} values, but {self._used} of this batch's {size} samples have been "
                "reported already. Report each sample once, or say with ids= which ones are meant."
            )
        rows = slice(self._used, self._used + count)
        self._used += count
        return rows

    def take(self) -> Measured:
        """All reports so far, on this side; there are none afterwards."""
        reports, self._reports = self._reports, []
        loss: list[torch.Tensor] = [report.values for report in reports]
        whole = [torch.empty(0)] * len(reports)
        # One transfer for each device and kind of report, whatever their number.
        kinds: dict[tuple[torch.device, int], list[int]] = {}
        for number, values in enumerate(loss):
            kinds.setdefault((values.device, values.dim()), []).append(number)
        for (_, dims), numbers in kinds.items():
            joined = torch.cat([loss[number].float() for number in numbers], dim=-1).cpu()
            if dims == 1:
                joined = torch.stack([joined, *[torch.full_like(joined, math.nan)] * 2])
            parts = torch.split(joined, [loss[number].shape[-1] for number in numbers], dim=-1)
            for number, part in zip(numbers, parts, strict=True):
                whole[number] = part
        rows = torch.cat([torch.empty(3, 0), *whole], dim=1).numpy().astype(np.float32)
        ids = [_whole_numbers(report.ids) for report in reports]
        ages = [
            np.broadcast_to(np.asarray(report.age, dtype=np.int32), one.shape)
            for report, one in zip(reports, ids, strict=True)
        ]
        correct = np.where(np.isnan(rows[1]), -1, rows[1] > rows[2]).astype(np.int8)
        return Measured(
            ids=np.concatenate([np.empty(0, np.int64), *ids]),
            loss=rows[0].copy(),
            probability=np.exp(rows[1]),
            rival=np.exp(rows[2]),
            correct=correct,
            age=np.concatenate([np.empty(0, np.int32), *ages]),
        )


def count_of(losses: Any, logits: Any) -> int:
    """How many samples a report is about; ArgumentError if that cannot be told."""
    values = losses if losses is not None else logits
    if not isinstance(values, torch.Tensor):
        raise ArgumentError(
            "feedback takes losses= (one a sample), or logits= and targets=, as tensors, "
            f"but got {type(values).__name__}"
        )
    return len(values) if values.dim() else 1


@torch.no_grad()
def _values(losses: Any, logits: Any, targets: Any) -> torch.Tensor:
    count = count_of(losses, logits)
    own: torch.Tensor | None = None
    if losses is not None:
        if not losses.is_floating_point():
            raise ArgumentError(f"feedback: losses must be floating-point numbers, but are {losses.dtype}")
        own = _one_each(losses.detach())
    if logits is None:
        assert own is not None
        return own
    if not isinstance(targets, torch.Tensor) or logits.dim() != 2 or targets.shape[:1] != (count,):
        shape = tuple(targets.shape) if isinstance(targets, torch.Tensor) else targets
        raise ArgumentError(
            "feedback: logits of the shape (samples, classes) need targets, one a sample, but the shapes "
            f"are {tuple(logits.shape)} and {shape}. For other outputs give losses=."
        )
    if targets.dim() > 1:  # Mixed labels: the one that counts most.
        targets = targets.argmax(1)
    column = targets.to(device=logits.device, dtype=torch.int64, non_blocking=True).unsqueeze(1)
    log_p = torch.log_softmax(logits.detach().float(), 1)
    right = log_p.gather(1, column).squeeze(1)
    rival = log_p.scatter_(1, column, -math.inf).amax(1)
    return torch.stack([-right if own is None else own.to(right.device, right.dtype), right, rival])


def _one_each(losses: torch.Tensor) -> torch.Tensor:
    # A copy: the training loop may change its own in place.
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses.clone().reshape(-1)


def _whole_numbers(ids: torch.Tensor | NDArray[np.int64]) -> NDArray[np.int64]:
    numbers = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    return numbers.astype(np.int64)
