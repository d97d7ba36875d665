"""Makes packed copies of images for `packed.py`: every format, shards, and FFCV's layout."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np

SIZE, QUALITY = 400, 90  # pixels of the longer side, as FFCV's recipe for ImageNet has them
SHARDS = 4


def make_packs(files: list[str], folder: Path) -> dict[str, str]:
    """Where each copy is, by what it is; `{…}` in a path is shards."""
    images = [Path(file).read_bytes() for file in files]
    found = {
        "files": _as_folder(images, folder / "files"),
        "h5py's": _with_h5py(images, folder / "h5py.h5"),
        **{name: packed(images, folder / f"all.{name}") for name in ("h5", "tfrecord", "tar", "lmdb")},
        "half raw": packed(_half_raw(images), folder / "half.h5"),
        "smaller": packed(map(_smaller, images), folder / "smaller.h5"),
    }
    for number in range(SHARDS):
        packed(images[number::SHARDS], folder / f"shard-{number:03}.tar")
    return {**found, "shards": str(folder / f"shard-{{000..{SHARDS - 1:03}}}.tar")}


def _as_folder(images: list[bytes], folder: Path) -> str:
    """A file a sample, all in one folder, with labels."""
    folder.mkdir()
    for number, image in enumerate(images):
        (folder / f"{number:06}.jpg").write_bytes(image)
    lines = (f"{number:06}.jpg,{number % 1000}" for number in range(len(images)))
    (folder / "labels.csv").write_text("\n".join(lines))
    return str(folder)


def _with_h5py(images: list[bytes], path: Path) -> str:
    """Bytes of any length, as h5py's documentation has them."""
    import h5py

    with h5py.File(path, "w") as file:
        stored = file.create_dataset("images", (len(images),), dtype=h5py.vlen_dtype(np.uint8))
        for number, image in enumerate(images):
            stored[number] = np.frombuffer(image, np.uint8)
        file["labels"] = np.arange(len(images)) % 1000
    return str(path)


def packed(samples: Iterable[bytes | np.ndarray], path: Path) -> str:
    """A packed file of these samples, encoded images and pixels; the path's ending names the format."""
    from rekindle.fetch import writer_for

    writer = writer_for(path)
    for number, sample in enumerate(samples):
        writer.add(f"{number:06}", sample, number % 1000)
    writer.close()
    return str(path)


def _pixels(image: bytes) -> np.ndarray:
    from PIL import Image

    opened = Image.open(io.BytesIO(image)).convert("RGB")
    opened.thumbnail((SIZE, SIZE), Image.Resampling.LANCZOS)
    return np.asarray(opened)


def _smaller(image: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(_pixels(image)).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def _half_raw(images: list[bytes]) -> Iterable[bytes | np.ndarray]:
    for number, image in enumerate(images):
        yield _pixels(image) if number % 2 else _smaller(image)
