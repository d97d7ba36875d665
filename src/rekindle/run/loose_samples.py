"""A batch of samples of which some did not fit its rows, collated in the main process from those there are.

Workers hand such samples over as they are. The others are read back from their rows, where a layout says what
the dataset returned: so no sample is asked for again, of which a dataset that reads on would give the next.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import default_collate

from rekindle.core.samples import Batch, Sample
from rekindle.run import batch_pickle
from rekindle.run.batch_layout import Leaf, Spec
from rekindle.run.collation import collate
from rekindle.run.in_flight_batch import InFlightBatch
from rekindle.run.messages import Done


def collated(batch: InFlightBatch) -> Batch:
    """What torch's `default_collate` makes of the samples that did not fail."""
    samples: dict[int, Sample] = {}
    for part, done in batch.results:
        failed = {error.row for error in done.errors}
        good = [row for row in range(part.start, part.stop) if row not in failed]
        found = _handed_over(batch, done) if done.loose else _read_back(batch, done, good)
        samples.update(zip(good, found, strict=True))
    return collate(default_collate, [samples[row] for row in sorted(samples)])


def _handed_over(batch: InFlightBatch, done: Done) -> list[Sample]:
    assert done.sizes is not None
    # Copied, because a collate function of the user's for some type may keep what it is given.
    if done.packed is not None:
        memory = np.frombuffer(bytearray(done.packed), dtype=np.uint8)
    else:
        memory = batch.loose_slots[done.part].array.copy()
    samples: list[Sample] = batch_pickle.decode(memory, done.sizes)
    return samples


def _read_back(batch: InFlightBatch, done: Done, rows: list[int]) -> Iterator[Sample]:
    """The samples of some rows, as the dataset returned them."""
    if not rows:
        return
    assert batch.layout is not None
    assert batch.slot is not None
    layout = batch.layout
    tensors = layout.tensors(batch.slot.array.copy(), layout.rows)
    texts = zip(*done.objects, strict=True) if done.objects else iter(() for _ in rows)
    for row, text in zip(rows, texts, strict=True):
        strings = iter(text)
        values = (
            next(strings) if tensor is None else _value(leaf, tensor[row])
            for leaf, tensor in zip(layout.leaves, tensors, strict=True)
        )
        yield _built(layout.spec, values)


def _value(leaf: Leaf, tensor: torch.Tensor) -> Sample:
    if leaf.source is torch.Tensor:
        return tensor
    array = tensor.numpy()
    return array if leaf.source is np.ndarray else leaf.source(array[()])


def _built(spec: Spec, leaves: Iterator[Sample]) -> Sample:
    if isinstance(spec, Leaf):
        return next(leaves)
    parts = [_built(part, leaves) for part in spec.parts]
    if spec.keys is not None:
        return dict(zip(spec.keys, parts, strict=True))
    # A named tuple with a `__new__` of its own has been through that once.
    make = getattr(spec.source, "_make", spec.source)
    return make(parts)
