"""Where the images of TFRecord files are: records of `tf.train.Example`, read without TensorFlow.

A record is its length (8 bytes), a checksum of that (4), the message, a checksum of the message (4). All
checksums are looked at when a file is indexed, unless `verify` is False.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rekindle.errors import ArgumentError, FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.listing import Names
from rekindle.fetch.record_index import MOST_BYTES, NO_LABEL, RecordIndex, make_rows
from rekindle.fetch.wire import BYTES, VARINT, fields, signed, varint

# What features are looked for, in this order, where `features=` does not say; the first are ImageNet's.
IMAGE_FEATURES = ("image/encoded", "image", "image_raw", "jpg", "jpeg", "png", "img", "encoded")
LABEL_FEATURES = ("image/class/label", "label", "cls", "class", "target")
TEXT_FEATURE = "image/class/text"
KEY_FEATURE = "image/filename"
_HEAD = struct.Struct("<QI")
_MOST_FEATURES = 10_000

Feature = tuple[int, int, int]  # which kind of list (1 bytes, 2 floats, 3 whole numbers), start, end


def index_tfrecord(
    files: Sequence[ByteFile], settings: Mapping[str, Any], told: Callable[[int], None]
) -> RecordIndex:
    """The samples of TFRecord files. Settings: `features` (`image`, `label`), `verify`."""
    wanted = settings.get("features") or {}
    unknown = set(wanted) - {"image", "label"}
    if unknown:
        raise ArgumentError(f"features= names {sorted(unknown)}. Name the features of `image` and `label`.")
    verify = settings.get("verify", True)
    columns = [np.empty((0, 4), dtype=np.int64)]
    classes: dict[int, str] = {}
    names: tuple[str, str | None] | None = None
    keys: list[bytes] = []
    done = 0
    for number, file in enumerate(files):
        found = []
        for start, data in records(file, verify=verify):
            try:
                features = example(data)
                if names is None:
                    names = _names(file, start, features, wanted)
                image, label = _sample(data, features, names)
                if label is not None and TEXT_FEATURE in features and label not in classes:
                    text = first_bytes(data, features[TEXT_FEATURE])
                    if text is not None:
                        classes[label] = bytes(data[text[0] : text[1]]).decode("utf-8", errors="replace")
                key = first_bytes(data, features[KEY_FEATURE]) if KEY_FEATURE in features else None
                if key is not None:
                    keys.append(bytes(data[key[0] : key[1]]))
            except ValueError as error:
                raise FormatError(f"{file.name!r} at byte {start}: a damaged Example: {error}") from error
            found.append(
                (number, start + image[0], image[1] - image[0], NO_LABEL if label is None else label)
            )
            if not len(found) & 1023:
                told(done + start)
        columns.append(np.array(found, dtype=np.int64).reshape(-1, 4))
        done += file.size
    table = np.concatenate(columns)
    if not len(table):
        raise FormatError(f"{files[0].name!r} at byte 0: there are no records.")
    rows = make_rows(table[:, 1], table[:, 2], table[:, 3], table[:, 0])
    named = Names.of(keys) if len(keys) == len(rows) else None
    return RecordIndex("tfrecord", rows, names=named, classes=_class_names(classes, table[:, 3]))


def _class_names(classes: Mapping[int, str], labels: np.ndarray[Any, Any]) -> list[str] | None:
    """The names of classes by number, if every label has one; gaps are named by their number."""
    labels = labels[labels != NO_LABEL]
    if (
        not classes
        or min(classes) < 0
        or max(classes) >= 1_000_000
        or not np.isin(labels, list(classes)).all()
    ):
        return None
    return [classes.get(number, str(number)) for number in range(max(classes) + 1)]


def records(file: ByteFile, *, verify: bool = True) -> Iterator[tuple[int, memoryview]]:
    """The offset and bytes of each record's message."""
    masked = _checksum() if verify else None
    place = 0
    while place < file.size:
        if place + _HEAD.size > file.size:
            raise FormatError(f"{file.name!r} at byte {place}: a record's head is cut off.")
        head = bytes(file.read(place, _HEAD.size))
        length, told = _HEAD.unpack(head)
        if masked is not None and masked(head[:8]) != told:
            raise FormatError(f"{file.name!r} at byte {place}: the checksum of a record's length is wrong.")
        start = place + _HEAD.size
        if length > MOST_BYTES or start + length + 4 > file.size:
            raise FormatError(
                f"{file.name!r} at byte {start}: a record of {length} bytes, but the file has {file.size}. "
                "It is damaged or cut off."
            )
        data = memoryview(file.read(start, length))
        if masked is not None and masked(data) != int.from_bytes(file.read(start + length, 4), "little"):
            raise FormatError(f"{file.name!r} at byte {start}: a record's checksum is wrong.")
        yield start, data
        place = start + length + 4


def _checksum() -> Callable[[Any], int]:
    try:
        import google_crc32c
    except ImportError:
        raise ArgumentError(
            "the checksums of TFRecord files need google-crc32c: pip install 'rekindle[tfrecord]', or give "
            "verify=False."
        ) from None
    return lambda data: mask(google_crc32c.value(bytes(data)))


def mask(checksum: int) -> int:
    """A CRC-32C as TFRecord keeps it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFF_FFFF


def example(data: memoryview) -> dict[str, Feature]:
    """The features of a `tf.train.Example`: where each one's list of values lies."""
    found: dict[str, Feature] = {}
    for number, kind, start, end in fields(data, 0, len(data)):
        if (number, kind) != (1, BYTES):
            continue
        for inner, kind_of_entry, entry, entry_end in fields(data, start, end):
            if (inner, kind_of_entry) != (1, BYTES):
                continue
            name, value = "", None
            for part, kind_of_part, a, b in fields(data, entry, entry_end):
                if kind_of_part == BYTES and part == 1:
                    name = bytes(data[a:b]).decode("utf-8", errors="replace")
                elif kind_of_part == BYTES and part == 2:
                    value = next(
                        ((which, c, d) for which, how, c, d in fields(data, a, b) if how == BYTES), (0, a, a)
                    )
            if value is not None:
                found[name] = value
            if len(found) > _MOST_FEATURES:
                raise ValueError(f"more than {_MOST_FEATURES:,} features")
    return found


def first_bytes(data: memoryview, feature: Feature) -> tuple[int, int] | None:
    """Where the first value of a list of bytes starts and ends."""
    which, start, end = feature
    if which != 1:
        return None
    return next(
        ((a, b) for number, kind, a, b in fields(data, start, end) if (number, kind) == (1, BYTES)), None
    )


def first_number(data: memoryview, feature: Feature) -> int | None:
    """The first value of a list of whole numbers."""
    which, start, end = feature
    if which != 3:
        return None
    for number, kind, a, b in fields(data, start, end):
        if (number, kind) == (1, VARINT):
            return signed(a)
        if (number, kind) == (1, BYTES) and b > a:
            return signed(varint(data, a, b)[0])
    return None


def _names(
    file: ByteFile, start: int, features: Mapping[str, Feature], wanted: Mapping[str, str]
) -> tuple[str, str | None]:
    """The features that hold image and label: as told, or guessed from the first record."""
    image = wanted.get("image") or next((n for n in IMAGE_FEATURES if features.get(n, (0,))[0] == 1), None)
    label = wanted.get("label") or next((n for n in LABEL_FEATURES if features.get(n, (0,))[0] == 3), None)
    missing = [name for name in (image, wanted.get("label")) if name is not None and name not in features]
    if image is None or missing:
        kinds = {1: "bytes", 2: "floats", 3: "whole numbers"}
        there = ", ".join(f"{name!r} ({kinds.get(value[0], 'empty')})" for name, value in features.items())
        raise FormatError(
            f"{file.name!r} at byte {start}: cannot tell which feature is the image"
            f"{f': there is no {missing[0]!r}' if missing else ''}. The first record has {there or 'none'}. "
            'Name them: features={"image": …, "label": …}.'
        )
    return image, label


def _sample(
    data: memoryview, features: Mapping[str, Feature], names: tuple[str, str | None]
) -> tuple[tuple[int, int], int | None]:
    image_name, label_name = names
    image = first_bytes(data, features[image_name]) if image_name in features else None
    if image is None:
        raise ValueError(f"it has no image {image_name!r}")
    if label_name is None:
        return image, None
    label = first_number(data, features[label_name]) if label_name in features else None
    if label is None:
        raise ValueError(f"it has no label {label_name!r}")
    return image, label
