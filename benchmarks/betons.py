"""Makes FFCV's files (.beton) with FFCV's own writer, and packed files of the very same bytes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.packs import packed

LABELS = 1000


class Decoded:
    """Photographs as FFCV's writer takes them: pixels and a label."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            return np.asarray(image.convert("RGB")), index % LABELS


def write_beton(images: Any, path: str, **field: Any) -> None:
    """FFCV's file of a dataset; `field` is how it stores images (see `RGBImageField`)."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    for index in range(len(images)):  # An error is raised here: FFCV would wait for ever for its worker.
        images[index]
    np.random.seed(0)  # which images `write_mode="proportion"` compresses
    writer = DatasetWriter(path, {"image": RGBImageField(**field), "label": IntField()}, num_workers=1)
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        writer.from_indexed_dataset(images)


def packed_beton(beton: str, path: str) -> None:
    """A packed file of what FFCV has written: its JPEGs byte for byte, its pixels, in the same order."""
    packed(_stored(beton), Path(path))


def _stored(beton: str) -> Iterator[bytes | np.ndarray]:
    from ffcv.fields.rgb_image import IMAGE_MODES
    from ffcv.reader import Reader

    reader = Reader(beton)
    fields, where = reader.metadata["f0"], reader.alloc_table
    sizes = dict(zip(where["ptr"].tolist(), where["size"].tolist(), strict=True))
    content = np.memmap(beton, np.uint8, mode="r")
    for mode, width, height, start in fields.tolist():
        image = content[start : start + sizes[start]]
        yield image.tobytes() if mode == IMAGE_MODES["jpg"] else image.reshape(height, width, 3)
