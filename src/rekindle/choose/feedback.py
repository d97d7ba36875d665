"""How the model did on the samples of a batch, as the training loop reports it.

A report costs a few small operations on the device of its tensors. Nothing waits for that device before the
end of the epoch, when all of its reports are copied at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.choose.scores import Measured
from rekindle.choose.target_classes import OUT_OF_RANGE, Targets, target_classes
from rekindle.errors import ArgumentError, FeedbackError


class _Report(NamedTuple):
    ids: NDArray[np.int64] | torch.Tensor
    age: NDArray[np.int64] | int
    # (n,): losses. (3, n): losses, log P of the target, largest log P of another class; for a target that is
    # none of the classes, infinity and the target in the place of the latter two.
    values: torch.Tensor


class Feedback:
    """The reports of an epoch, each on the device of its tensors, until they are taken."""

    def __init__(self) -> None:
        self._reports: list[_Report] = []

    def add(
        self,
        ids: torch.Tensor | NDArray[np.int64],
        age: NDArray[np.int64] | int,
        losses: object,
        logits: object,
        targets: object,
    ) -> None:
        """Keep a report on these samples; ArgumentError if it does not have one entry for each."""
        values = _values(losses, logits, targets)
        if values.shape[-1] != len(ids):
            raise ArgumentError(
                f"feedback: {values.shape[-1]} values for {len(ids)} samples. Give one per sample: compute "
                "the loss with reduction='none'."
            )
        self._reports.append(_Report(ids, age, values))

    def take(self) -> Measured:
        """All reports so far, in host memory; there are none afterwards.

        FeedbackError if one has a target that is none of the classes, which is not known before: on a device.
        """
        reports, self._reports = self._reports, []
        rows = _on_host([report.values for report in reports])
        _check_targets(rows)
        ids = [_as_integers(report.ids) for report in reports]
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


def report_length(losses: object, logits: object) -> int:
    """How many samples a report is about; ArgumentError if it has no tensor that says so."""
    values = losses if losses is not None else logits
    if not isinstance(values, torch.Tensor):
        raise ArgumentError(
            "feedback takes tensors: losses= (one per sample), or logits= and targets=, "
            f"but got {type(values).__name__}"
        )
    return len(values) if values.dim() else 1


@torch.no_grad()
def _values(losses: object, logits: object, targets: object) -> torch.Tensor:
    report_length(losses, logits)
    own = _losses(losses)
    if logits is None and own is not None:
        return own
    given = target_classes(logits, targets)
    log_p = torch.log_softmax(given.logits.detach().float(), 1)
    if given.are_known:
        right, rival = _right_and_rival(log_p, given.classes.unsqueeze(1))
    else:
        right, rival = _where_classes(log_p, given)
    if own is None:
        own = -right
    elif len(own) != len(right):
        raise ArgumentError(
            f"feedback: losses of {len(own)} samples, but logits of {len(right)}. Give both for the same."
        )
    return torch.stack([own.to(right.device, right.dtype), right, rival])


def _right_and_rival(log_p: torch.Tensor, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    right = log_p.gather(1, column).squeeze(1)
    return right, log_p.scatter_(1, column, -math.inf).amax(1)


def _where_classes(log_p: torch.Tensor, given: Targets) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for targets that may be none of the classes: looking at them would wait for their device."""
    nearest = given.classes.clamp(0, log_p.shape[1] - 1)
    right, rival = _right_and_rival(log_p, nearest.unsqueeze(1))
    is_class = nearest == given.classes
    return right.where(is_class, math.inf), rival.where(is_class, given.classes.to(rival.dtype))


def _check_targets(rows: NDArray[np.float32]) -> None:
    none = rows[2][np.isposinf(rows[1])]  # No log P is: those of infinite logits are NaN.
    if len(none):
        raise FeedbackError(
            f"feedback: {len(none)} targets reported in this epoch are none of the classes of their logits: "
            f"they are from {none.min():.0f} to {none.max():.0f}. {OUT_OF_RANGE}"
        )


def _losses(losses: object) -> torch.Tensor | None:
    """One loss per sample, as a copy: the training loop may change its own in place."""
    if not isinstance(losses, torch.Tensor):
        return None
    if not losses.is_floating_point():
        raise ArgumentError(f"feedback: losses must be floating-point numbers, but are {losses.dtype}")
    losses = losses.detach()
    return losses.flatten(1).mean(1) if losses.dim() > 1 else losses.clone().reshape(-1)


def _on_host(values: list[torch.Tensor]) -> NDArray[np.float32]:
    """The values of all reports, of shape (3, n), by one transfer per device and kind of report."""
    parts = [torch.empty(0)] * len(values)
    kinds: dict[tuple[torch.device, int], list[int]] = {}
    for number, one in enumerate(values):
        kinds.setdefault((one.device, one.dim()), []).append(number)
    for (_, dims), numbers in kinds.items():
        joined = torch.cat([values[number].float() for number in numbers], dim=-1).cpu()
        if dims == 1:
            joined = torch.stack([joined, *[torch.full_like(joined, math.nan)] * 2])
        split = torch.split(joined, [values[number].shape[-1] for number in numbers], dim=-1)
        for number, part in zip(numbers, split, strict=True):
            parts[number] = part
    rows: NDArray[np.float32] = torch.cat([torch.empty(3, 0), *parts], dim=1).numpy().astype(np.float32)
    return rows


def _as_integers(ids: torch.Tensor | NDArray[np.int64]) -> NDArray[np.int64]:
    numbers = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids)
    return numbers.astype(np.int64)
