"""Transforms of whole batches, where they end up: steps left to the device, then `batch_transform`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.samples import Batch
from rekindle.errors import ArgumentError
from rekindle.prepare.device.steps import apply
from rekindle.prepare.steps.mixup_cutmix import CutMix, MixUp
from rekindle.prepare.steps.to_tensor import ConvertImageDtype, Normalize
from rekindle.run.in_flight_batch import CollatedBatch, SlotBatch
from rekindle.ship.unpack import good_rows

if TYPE_CHECKING:
    from rekindle.prepare.device.device_steps import DeviceSteps

BatchStep: TypeAlias = MixUp | CutMix | ConvertImageDtype | Normalize


class BatchTransforms:
    """Transforms batches of (images, labels), with random numbers that follow from their samples' keys.

    The steps of a dataset draw the numbers that they would draw on the CPU. A step on batches draws by the
    epoch and the batch's number in it.
    """

    def __init__(self, seed: int, on_device: DeviceSteps | None, on_batches: Sequence[BatchStep]) -> None:
        self._seed, self._on_device, self._on_batches = seed, on_device, on_batches

    def __call__(self, ready: SlotBatch | CollatedBatch, batch: Batch) -> Batch:
        """The transformed batch."""
        pair = isinstance(batch, list | tuple) and len(batch) == 2
        if not pair or not all(isinstance(part, torch.Tensor) for part in batch):
            parts = f" of {', '.join(type(part).__name__ for part in batch)}" if pair else ""
            raise ArgumentError(
                "steps on batches take (images, labels), two tensors, but the batch is a "
                f"{type(batch).__name__}{parts}. Leave out batch_transform, or let the dataset return such "
                "pairs."
            )
        images, labels = batch
        if self._on_device is not None:
            images = self._on_device.apply(images, self._uniforms(ready, self._on_device.uniforms))
        count = sum(step.uniforms for step in self._on_batches)
        order, key = ready.order, counter_rng.Step.BATCH_TRANSFORM
        drawn = counter_rng.uniforms(self._seed, order.step, order.batch_turn, key, count)
        used = 0
        for step in self._on_batches:
            if isinstance(step, MixUp | CutMix):
                images, labels = step.apply(images, labels, drawn[0, used : used + step.uniforms])
                used += step.uniforms
            else:
                images = apply(step, images, drawn[:, :0])
        return [images, labels]

    def _uniforms(self, ready: SlotBatch | CollatedBatch, count: int) -> NDArray[np.float64]:
        ids, order, good = ready.ids, ready.order, good_rows(ready)
        turns = order.turns
        if good is not None:
            ids = ids[good]
            turns = turns if isinstance(turns, int) else turns[good]
        return counter_rng.uniforms(self._seed, ids, turns, count=count)


def steps_on_batches(transform: object) -> list[BatchStep]:
    """`batch_transform=` as a list of steps; ArgumentError if one of them is not for batches."""
    given = list(transform) if isinstance(transform, list | tuple) else [transform]
    steps: list[BatchStep] = []
    for step in (inner for outer in given for inner in getattr(outer, "transforms", [outer])):
        if not isinstance(step, BatchStep):
            raise ArgumentError(
                f"batch_transform has {step!r}. Give MixUp, CutMix, Normalize or ConvertImageDtype of "
                "rekindle.transforms; transforms of single images belong to the dataset."
            )
        steps.append(step)
    return steps
