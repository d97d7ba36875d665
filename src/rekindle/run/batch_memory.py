"""The memory of a batch whose parts are all back, and how it is let go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.run import batch_pickle
from rekindle.run.in_flight_batch import InFlightBatch
from rekindle.run.slots import SlotPool

_MOST_HELD = 8  # batches: some are kept to look at; who keeps them all would use up the descriptors


def of_batch(batch: InFlightBatch, slots: SlotPool) -> NDArray[np.uint8]:
    """What the batch's tensors will refer to."""
    done = batch.results[-1][1]
    packed = done.packed
    if packed is not None:
        free(batch, slots)
        return np.frombuffer(bytearray(packed), dtype=np.uint8)
    assert batch.slot is not None
    if slots.leased < _MOST_HELD:
        return slots.lease(batch.slot)
    # The training loop keeps its batches: this one gets memory of its own, and the slot goes on.
    used = batch.layout.nbytes if batch.layout is not None else batch_pickle.packed_nbytes(done.sizes or [])
    copy = batch.slot.array[:used].copy()
    free(batch, slots)
    return copy


def free(batch: InFlightBatch, slots: SlotPool) -> None:
    """Give back what the batch has of slots."""
    if batch.slot is not None:
        slots.give_back(batch.slot)
        batch.slot = None
    while batch.loose_slots:
        slots.give_back(batch.loose_slots.popitem()[1])
