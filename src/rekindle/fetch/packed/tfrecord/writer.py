"""Writes TFRecord files of `tf.train.Example` messages, with ImageNet's features."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from rekindle.core.atomic_file import AtomicFile
from rekindle.core.directory import Directory
from rekindle.errors import MissingPackageError
from rekindle.fetch.image_signatures import image_format
from rekindle.fetch.packed.protobuf import encode_bytes, encode_varint
from rekindle.fetch.packed.tfrecord.index import (
    IMAGE_FEATURES,
    KEY_FEATURE,
    LABEL_FEATURES,
    TEXT_FEATURE,
    mask,
)
from rekindle.fetch.packed.writers import LabelPolicy, Writable, as_bytes


class TfrecordWriter:
    """Samples as records; the class name is the feature `image/class/text` of each."""

    def __init__(
        self, path: Path, classes: Sequence[str] | None = None, directory: Directory | None = None
    ) -> None:
        try:
            import google_crc32c
        except ImportError:
            raise MissingPackageError(
                "writing TFRecord files needs google-crc32c: pip install 'rekindle[tfrecord]'."
            ) from None
        self._checksum = google_crc32c.value
        self._target = AtomicFile(path, directory=directory)
        self._classes, self._policy = classes, LabelPolicy(classes)

    def add(self, key: str, data: Writable, label: int) -> None:
        """Add a sample as a record."""
        content = as_bytes(data)
        known = image_format(content)
        values = {
            IMAGE_FEATURES[0]: _bytes_list(content),
            "image/format": _bytes_list(known.name.upper().encode() if known else b""),
            KEY_FEATURE: _bytes_list(key.encode("utf-8", "surrogateescape")),
        }
        if self._policy.is_written(key, label):
            values[LABEL_FEATURES[0]] = encode_bytes(3, encode_bytes(1, encode_varint(label)))
            if self._classes is not None and 0 <= label < len(self._classes):
                values[TEXT_FEATURE] = _bytes_list(self._classes[label].encode("utf-8", "surrogateescape"))
        entries = (encode_bytes(1, name.encode()) + encode_bytes(2, value) for name, value in values.items())
        message = encode_bytes(1, b"".join(encode_bytes(1, entry) for entry in entries))
        length = struct.pack("<Q", len(message))
        for part in (length, message):
            self._target.file.write(part + struct.pack("<I", mask(self._checksum(part))))

    def close(self) -> None:
        """Finish the file and give it its name."""
        self._target.commit()

    def abort(self) -> None:
        """Remove what was written; does nothing after `close`."""
        self._target.abort()


def _bytes_list(content: bytes) -> bytes:
    """A feature that is a list of one bytes value."""
    return encode_bytes(1, encode_bytes(1, content))
