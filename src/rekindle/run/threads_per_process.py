"""How many workers share a process: several threads where they do not stand in each other's way, else one.

Threads of one process share its memory and its start, but also its GIL. A sample on the native path holds it
for some ten microseconds, so four samples of a millisecond each hardly ever wait for it, and sixteen, or four
of a tenth of that, mostly do. What a sample costs is estimated from its steps and the size of some files: no
sample is read and no clock is asked, so a run that is repeated is set up alike.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from torch.utils.data import default_collate, default_convert

from rekindle.core.analysis.held_generators import held_generators
from rekindle.core.samples import Collate
from rekindle.errors import RekindleError
from rekindle.fetch.source import Source
from rekindle.prepare.declared import draws_nothing, releases_gil
from rekindle.prepare.image_dataset import ImageDataset
from rekindle.prepare.native import as_native
from rekindle.prepare.native_concat import NativeConcat
from rekindle.prepare.native_images import NativeImages, own_steps
from rekindle.prepare.steps.step import Step
from rekindle.prepare.translated import TranslatedDataset
from rekindle.reuse.step_costs import DECODING, UNKNOWN, nanoseconds

MOST_THREADS = 4
_LONG_ENOUGH = 300e3  # nanoseconds of a sample, for threads to pay
_BYTES_PER_PIXEL = 0.6  # of an encoded photograph
_FUSED = 1.0  # nanoseconds a pixel for all that is done in one pass to the batch's memory
_FUSED_STEPS = frozenset({"ToTensor", "PILToTensor", "ConvertImageDtype", "Normalize"})
_LOOKED_AT = 16  # files
_PHOTOGRAPH = 100_000  # bytes
_PIXELS = (".ppm", ".pgm", ".bmp")  # files that are not compressed


def threads_per_process(
    dataset: object, collate_fn: Collate, worker_init_fn: Callable[[int], None] | None
) -> int:
    """How many workers a process can have for samples of a map-style dataset."""
    if worker_init_fn is not None or collate_fn not in (default_collate, default_convert):
        return 1  # Code of the user's, which takes a worker for a process.
    if not (releases_gil(dataset) and draws_nothing(dataset)):
        return 1
    native = as_native(dataset)
    if native is None:
        # It says itself that nearly all of its work needs no GIL. A generator of its own is for one thread.
        return 1 if held_generators(dataset) else MOST_THREADS
    return MOST_THREADS if sample_nanoseconds(native) >= _LONG_ENOUGH else 1


def sample_nanoseconds(dataset: Any) -> float:
    """About what a sample of a native dataset takes, without what Python adds to it."""
    while not isinstance(dataset, NativeImages):
        if isinstance(dataset, TranslatedDataset):
            dataset = dataset.native
        elif isinstance(dataset, NativeConcat):
            dataset = dataset.parts[0]  # The first of several that are concatenated stands for all.
        else:
            dataset = dataset.dataset
    example, loaded = dataset.example(), 0.0
    if isinstance(dataset, ImageDataset):
        loaded = _decoding_nanoseconds(dataset)
    if example is None:
        return loaded
    pixels = np.prod(np.shape(example[0])) / 3
    return float(loaded + pixels * _pixel_nanoseconds(dataset))


def _pixel_nanoseconds(dataset: NativeImages) -> float:
    steps = own_steps(dataset.transform) or []
    costs = [
        nanoseconds(step) if isinstance(step, Step) else None
        for step in steps
        if type(step).__name__ not in _FUSED_STEPS
    ]
    return sum((UNKNOWN if cost is None else cost for cost in costs), _FUSED)


def _decoding_nanoseconds(dataset: ImageDataset) -> float:
    """What decoding takes, by the size of some files; nothing if they are pixels.

    Pixels that are packed count as what is encoded. Units of them run without the GIL, so threads pay.
    """
    count = len(dataset)
    chosen = range(0, count, max(1, count // _LOOKED_AT))[:_LOOKED_AT]
    sizes = []
    for index in chosen:
        with suppress(OSError, RekindleError):  # What cannot be read is an error then.
            sizes.append(_encoded_nbytes(dataset.source, index))
    return float(np.mean(sizes)) / _BYTES_PER_PIXEL * DECODING if sizes else 0.0


def _encoded_nbytes(source: Source, index: int) -> int:
    known: Callable[[int], int] | None = getattr(source, "encoded_nbytes", None)
    if known is None:  # A source of somebody else's: as large as photographs are.
        return _PHOTOGRAPH
    return 0 if source.path(index).lower().endswith(_PIXELS) else known(index)
