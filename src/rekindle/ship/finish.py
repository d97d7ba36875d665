"""What is done to whole batches where they end up: steps left to the device, then those on batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from rekindle import keys
from rekindle.errors import ArgumentError
from rekindle.prepare.batched.steps import apply
from rekindle.prepare.mixing import CutMix, MixUp
from rekindle.prepare.tensors import ConvertImageDtype, Normalize
from rekindle.run.tickets import Filled, Made
from rekindle.ship.unpack import good_rows

if TYPE_CHECKING:
    from rekindle.prepare.batched.suffix import Suffix

_ON_IMAGES = (ConvertImageDtype, Normalize)
_MIXING = (MixUp, CutMix)


class Finish:
    """Finishes batches of (images, labels), with numbers that follow from their samples' keys.

    The steps of a data set draw the numbers that they would draw on the CPU. A step on batches draws by the
    epoch and the batch's number in it.
    """

    def __init__(self, seed: int, suffix: Suffix | None, on_batches: Sequence[Any]) -> None:
        self._seed, self._suffix, self._on_batches = seed, suffix, on_batches

    def __call__(self, ready: Filled | Made, batch: Any) -> Any:
        """The batch, finished."""
        pair = isinstance(batch, list | tuple) and len(batch) == 2
        if not pair or not all(isinstance(part, torch.Tensor) for part in batch):
            raise ArgumentError(
                f"steps on batches take (images, labels), two tensors, but the batch is a "
                f"{type(batch).__name__}. Leave out batch_transform, or let the data set give such pairs."
            )
        images, labels = batch
        if self._suffix is not None:
            images = self._suffix.apply(images, self._numbers(ready, self._suffix.uniforms))
        count = sum(step.uniforms for step in self._on_batches)
        order, key = ready.order, keys.Step.BATCH_TRANSFORM
        drawn = keys.uniforms(self._seed, order.step, order.epoch, key, count)
        used = 0
        for step in self._on_batches:
            if isinstance(step, _MIXING):
                images, labels = step.apply(images, labels, drawn[0, used : used + step.uniforms])
                used += step.uniforms
            else:
                images = apply(step, images, drawn[:, :0])
        return [images, labels]

    def _numbers(self, ready: Filled | Made, count: int) -> Any:
        ids, order, good = ready.ids, ready.order, good_rows(ready)
        turns = order.turns
        if good is not None:
            ids = ids[good]
            turns = turns if isinstance(turns, int) else turns[good]
        return keys.uniforms(self._seed, ids, turns, count=count)


def steps_on_batches(transform: Any) -> list[Any]:
    """`batch_transform=` as a list of steps; ArgumentError if one of them is not for batches."""
    steps = list(transform) if isinstance(transform, list | tuple) else [transform]
    steps = [inner for step in steps for inner in getattr(step, "transforms", [step])]
    for step in steps:
        if not isinstance(step, _ON_IMAGES + _MIXING):
            raise ArgumentError(
                f"batch_transform has {step!r}. Give MixUp, CutMix, Normalize or ConvertImageDtype of "
                "rekindle.transforms; what is done to single images belongs to the data set."
            )
    return steps
