"""Writes TFRecord files of `tf.train.Example`, with the features that ImageNet's have."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError
from rekindle.fetch.atomic import AtomicFile
from rekindle.fetch.image_kinds import ending_of
from rekindle.fetch.tfrecord_index import IMAGE_FEATURES, KEY_FEATURE, LABEL_FEATURES, TEXT_FEATURE, mask
from rekindle.fetch.wire import encoded_bytes, encoded_varint
from rekindle.fetch.writers import Labelling, as_bytes

_FORMATS = {"jpg": b"JPEG", "png": b"PNG", "webp": b"WEBP", "ppm": b"PPM"}


class TfrecordWriter:
    """Samples as records; names of classes are the feature `image/class/text` of each."""

    def __init__(self, path: Path, classes: Sequence[str] | None = None) -> None:
        try:
            import google_crc32c
        except ImportError:
            raise ArgumentError(
                "writing TFRecord files needs google-crc32c: pip install 'rekindle[tfrecord]'."
            ) from None
        self._checksum = google_crc32c.value
        self._target = AtomicFile(path)
        self._classes, self._labelling = classes, Labelling(classes)

    def add(self, key: str, data: bytes | memoryview | NDArray[np.uint8], label: int) -> None:
        """Add a sample as a record."""
        content = as_bytes(data)
        values = {
            IMAGE_FEATURES[0]: _of_bytes(content),
            "image/format": _of_bytes(_FORMATS.get(ending_of(content), b"")),
            KEY_FEATURE: _of_bytes(key.encode("utf-8", "surrogateescape")),
        }
        if self._labelling.is_written(key, label):
            values[LABEL_FEATURES[0]] = encoded_bytes(3, encoded_bytes(1, encoded_varint(label)))
            if self._classes is not None and 0 <= label < len(self._classes):
                values[TEXT_FEATURE] = _of_bytes(self._classes[label].encode("utf-8", "surrogateescape"))
        entries = (
            encoded_bytes(1, name.encode()) + encoded_bytes(2, value) for name, value in values.items()
        )
        message = encoded_bytes(1, b"".join(encoded_bytes(1, entry) for entry in entries))
        length = struct.pack("<Q", len(message))
        for part in (length, message):
            self._target.file.write(part + struct.pack("<I", mask(self._checksum(part))))

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._target.close()

    def abort(self) -> None:
        """Leave nothing behind."""
        self._target.abort()


def _of_bytes(content: bytes) -> bytes:
    """A feature that is a list of one value of bytes."""
    return encoded_bytes(1, encoded_bytes(1, content))
