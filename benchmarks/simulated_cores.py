"""Datasets whose work is a sleep: many cores on a machine that has few.

Decoding (or, of raw pixels, reading) sleeps without the GIL, as long as it would take, and gives whatever
pixels are there. All else is real: the messages, the files that are opened, random numbers, crops, labels,
what each sample and each batch costs in Python.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

FILES, PIXELS, CROP = 2048, 64, 32
KINDS = ("JPEG files", "raw packed")


def make_images(folder: Path) -> None:
    """Small images, as files and packed as pixels."""
    from PIL import Image

    from rekindle.fetch import writer_for

    pixels = np.random.default_rng(0).integers(0, 256, (PIXELS, PIXELS, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG")
    (folder / "files").mkdir()
    for number in range(FILES):
        (folder / "files" / f"{number}.jpg").write_bytes(buffer.getvalue())
    writer = writer_for(folder / "raw.h5")
    for number in range(FILES):
        writer.add(f"{number}", pixels, number % 10)
    writer.close()


def images(folder: str, kind: str) -> Any:
    """The native dataset of one kind of images: a random crop, a flip and a normalization."""
    import rekindle as rk

    T = rk.transforms  # noqa: N806
    steps = [T.RandomResizedCrop(CROP), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(*_MEAN_STD)]
    if kind == "raw packed":
        return rk.open(f"{folder}/raw.h5", transform=steps)
    labels = {f"{number}.jpg": number % 10 for number in range(FILES)}
    return rk.open(f"{folder}/files", transform=steps, labels=labels)


_MEAN_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@contextmanager
def simulated(kind: str, seconds: float, threads: int) -> Iterator[None]:
    """Decoding, or reading of pixels, sleeps; workers started within this do so.

    `threads` is how many of them share a process: it is otherwise decided by the size of the images, and
    these are small.
    """
    from rekindle.fetch.packed.source import Packed
    from rekindle.loader import settings
    from rekindle.prepare.decode import jpeg_box
    from rekindle.prepare.resized_crop_units import ResizedCropUnits

    with ExitStack() as patches:

        def sleep_in(owner: Any, name: str, function: Callable[..., Any], samples: _Count) -> None:
            patches.enter_context(patch.object(owner, name, _sleeping(function, seconds, samples)))

        if kind == "raw packed":
            sleep_in(Packed, "read", Packed.read, lambda *_: 1)
            whole_unit = ResizedCropUnits.write_mapped  # which reads its samples itself
            sleep_in(ResizedCropUnits, "write_mapped", whole_unit, lambda _, samples, *__: len(samples.files))
        else:
            decode = _sleeping(lambda *_: True, seconds, lambda *_: 1)
            patches.enter_context(patch.object(jpeg_box, "compiled_or_later", lambda *_: decode))
        patches.enter_context(patch.object(settings, "threads_per_process", lambda *_: threads))
        yield


_Count = Callable[..., int]  # how many samples a call is for


def _sleeping(function: Callable[..., Any], seconds: float, samples: _Count) -> Callable[..., Any]:
    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds * samples(*arguments))
        return function(*arguments, **options)

    return slow
