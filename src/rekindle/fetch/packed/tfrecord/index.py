"""Indexes TFRecord files of `tf.train.Example` messages, without TensorFlow.

A record is its length (8 bytes), a checksum of that (4), the message, and a checksum of the message (4). All
checksums are verified when a file is indexed, unless `verify` is False. A message with a wrong one is a
sample that cannot be read; after a length with a wrong one, nothing can be found.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import ArgumentError, FormatError, MissingPackageError
from rekindle.fetch.byte_files import ByteReader, truncated
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.packed.protobuf import BYTES, VARINT, fields, signed, varint
from rekindle.fetch.packed.record_index import (
    BYTES as SAMPLE_BYTES,
)
from rekindle.fetch.packed.record_index import (
    DAMAGED,
    MAX_SAMPLE_BYTES,
    NO_LABEL,
    IndexSettings,
    RecordIndex,
    make_rows,
)

# The features that are tried, in this order, without `features=`; the first are ImageNet's.
IMAGE_FEATURES = ("image/encoded", "image", "image_raw", "jpg", "jpeg", "png", "img", "encoded")
LABEL_FEATURES = ("image/class/label", "label", "cls", "class", "target")
TEXT_FEATURE = "image/class/text"
KEY_FEATURE = "image/filename"
_HEAD = struct.Struct("<QI")
_MAX_FEATURES = 10_000

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
Feature = tuple[int, int, int]  # which of these lists it is, start, end


def index_tfrecord(
    files: Sequence[ByteReader],
    settings: IndexSettings,
    report: Callable[[int], None],
    limits: Limits = DEFAULT_LIMITS,
) -> RecordIndex:
    """The samples of TFRecord files. Settings: `features` (`image`, `label`), `verify`."""
    wanted = settings.get("features") or {}
    unknown = set(wanted) - {"image", "label"}
    if unknown:
        raise ArgumentError(f"features= has unknown keys {sorted(unknown)}. Give `image` and `label`.")
    verify = settings.get("verify", True)
    columns = [np.empty((0, 5), dtype=np.int64)]
    classes: dict[int, str] = {}
    names: tuple[str, str | None] | None = None
    keys: list[bytes] = []
    done = 0
    for number, file in enumerate(files):
        found = []
        for start, data, is_intact in records(file, verify=verify):
            if not is_intact:
                found.append((number, start, len(data), NO_LABEL, 1))
                keys.append(b"")
                continue
            try:
                features = example(data)
                if names is None:
                    names = _feature_names(file, start, features, wanted)
                image, label = _sample(data, features, names)
                if label is not None and TEXT_FEATURE in features and label not in classes:
                    text = first_bytes(data, features[TEXT_FEATURE])
                    if text is not None:
                        classes[label] = bytes(data[text[0] : text[1]]).decode("utf-8", errors="replace")
                key = first_bytes(data, features[KEY_FEATURE]) if KEY_FEATURE in features else None
                if key is not None:
                    keys.append(bytes(data[key[0] : key[1]]))
            except ValueError as error:
                raise FormatError(f"{file.name!r} at byte {start}: a corrupt Example: {error}") from error
            found.append(
                (number, start + image[0], image[1] - image[0], NO_LABEL if label is None else label, 0)
            )
            if not len(found) & 1023:
                report(done + start)
        columns.append(np.array(found, dtype=np.int64).reshape(-1, 5))
        done += file.size
    table = np.concatenate(columns)
    if not len(table):
        raise FormatError(f"{files[0].name!r} at byte 0: the file has no records.")
    if names is None:
        raise FormatError(
            f"{files[table[0, 0]].name!r} at byte {table[0, 1]}: wrong checksum of a record, and of all "
            f"{len(table):,}: corrupt. Make the file again, or open it with verify=False to read it without "
            "checksums."
        )
    rows = make_rows(table[:, 1], table[:, 2], table[:, 3], table[:, 0], decodings=table[:, 4])
    decodings = (SAMPLE_BYTES, DAMAGED) if table[:, 4].any() else (SAMPLE_BYTES,)
    named = BytesArray.from_list(keys) if any(keys) and len(keys) == len(rows) else None
    labels = _class_names(classes, table[:, 3], limits)
    return RecordIndex("tfrecord", rows, decodings, names=named, classes=labels)


def _class_names(classes: Mapping[int, str], labels: NDArray[np.int64], limits: Limits) -> list[str] | None:
    """Class names by number, if every label has one; classes without samples are named by their number."""
    labels = labels[labels != NO_LABEL]
    if (
        not classes
        or min(classes) < 0
        or max(classes) >= limits.classes
        or not np.isin(labels, list(classes)).all()
    ):
        return None
    return [classes.get(number, str(number)) for number in range(max(classes) + 1)]


def records(file: ByteReader, *, verify: bool = True) -> Iterator[tuple[int, memoryview, bool]]:
    """The offset and bytes of each record's message, and whether its checksum is right."""
    checksum = _checksum_function() if verify else None
    offset = 0
    while offset < file.size:
        if offset + _HEAD.size > file.size:
            raise truncated(file, offset, "a record's header", _HEAD.size)
        head = bytes(file.read(offset, _HEAD.size))
        length, stored = _HEAD.unpack(head)
        if checksum is not None and checksum(head[:8]) != stored:
            raise FormatError(
                f"{file.name!r} at byte {offset}: wrong checksum of a record's length: corrupt, so the "
                "records after it cannot be found. Make the file again."
            )
        start = offset + _HEAD.size
        if length > MAX_SAMPLE_BYTES or start + length + 4 > file.size:
            raise truncated(file, start, "a record", length)
        data = memoryview(file.read(start, length))
        is_intact = checksum is None or (
            checksum(data) == int.from_bytes(file.read(start + length, 4), "little")
        )
        yield start, data, is_intact
        offset = start + length + 4


def _checksum_function() -> Callable[[bytes | memoryview], int]:
    try:
        import google_crc32c
    except ImportError:
        raise MissingPackageError(
            "the checksums of TFRecord files need google-crc32c: pip install 'rekindle[tfrecord]', or give "
            "verify=False."
        ) from None
    return lambda data: mask(google_crc32c.value(bytes(data)))


def mask(checksum: int) -> int:
    """A CRC-32C as TFRecord stores it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFF_FFFF


def example(data: memoryview) -> dict[str, Feature]:
    """The features of a `tf.train.Example`: where the list of values of each lies."""
    found: dict[str, Feature] = {}
    for features, features_end in _messages(data, 0, len(data)):
        for entry, entry_end in _messages(data, features, features_end):
            name, value = _feature(data, entry, entry_end)
            if name in found:
                raise ValueError(f"a second feature {name!r:.80}")
            found[name] = value
            if len(found) > _MAX_FEATURES:
                raise ValueError(f"more than {_MAX_FEATURES:,} features")
    return found


def _feature(data: memoryview, entry: int, entry_end: int) -> tuple[str, Feature]:
    """A feature's name and list of values.

    One that has two of either, or anything else, is an error: of these, other readers take the first or the
    last, join them, or leave the feature out.
    """
    name, value = None, None
    for number, wire_type, start, end in fields(data, entry, entry_end):
        if (number, wire_type) == (1, BYTES) and name is None:
            name = bytes(data[start:end]).decode("utf-8", errors="replace")
        elif (number, wire_type) == (2, BYTES) and value is None:
            lists = [(which, a, b) for which, kind, a, b in fields(data, start, end) if kind == BYTES]
            value = lists[0] if lists else (0, start, start)
            if len(lists) > 1:
                raise ValueError(f"a feature of {len(lists)} lists at byte {start}")
        else:
            raise ValueError(f"a feature with a second name, a second value or a field {number}")
    return name or "", value or (0, entry_end, entry_end)


def _messages(data: memoryview, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and end of each message, or bytes, that is field 1."""
    for number, wire_type, inner, inner_end in fields(data, start, end):
        if (number, wire_type) == (1, BYTES):
            yield inner, inner_end


def first_bytes(data: memoryview, feature: Feature) -> tuple[int, int] | None:
    """Where the first value of a list of bytes starts and ends."""
    which, start, end = feature
    return next(_messages(data, start, end), None) if which == _BYTES_LIST else None


def first_integer(data: memoryview, feature: Feature) -> int | None:
    """The first value of a list of integers."""
    which, start, end = feature
    if which != _INT64_LIST:
        return None
    for number, wire_type, a, b in fields(data, start, end):
        if (number, wire_type) == (1, VARINT):
            return signed(a)
        if (number, wire_type) == (1, BYTES) and b > a:
            return signed(varint(data, a, b)[0])
    return None


def _feature_names(
    file: ByteReader, start: int, features: Mapping[str, Feature], wanted: Mapping[str, str]
) -> tuple[str, str | None]:
    """The features that hold image and label: as given, or guessed from the first record."""
    image = wanted.get("image") or _first_of(features, IMAGE_FEATURES, _BYTES_LIST)
    label = wanted.get("label") or _first_of(features, LABEL_FEATURES, _INT64_LIST)
    missing = [name for name in (image, wanted.get("label")) if name is not None and name not in features]
    if image is None or missing:
        kinds = {_BYTES_LIST: "bytes", _FLOAT_LIST: "floats", _INT64_LIST: "integers"}
        listed = ", ".join(f"{name!r} ({kinds.get(value[0], 'empty')})" for name, value in features.items())
        raise FormatError(
            f"{file.name!r} at byte {start}: cannot tell which feature is the image"
            f"{f': there is no {missing[0]!r}' if missing else ''}. The first record has {listed or 'none'}. "
            'Name them: features={"image": …, "label": …}.'
        )
    return image, label


def _first_of(features: Mapping[str, Feature], names: Sequence[str], which: int) -> str | None:
    return next((name for name in names if name in features and features[name][0] == which), None)


def _sample(
    data: memoryview, features: Mapping[str, Feature], names: tuple[str, str | None]
) -> tuple[tuple[int, int], int | None]:
    image_name, label_name = names
    image = first_bytes(data, features[image_name]) if image_name in features else None
    if image is None:
        raise ValueError(f"it has no image feature {image_name!r}")
    if label_name is None:
        return image, None
    label = first_integer(data, features[label_name]) if label_name in features else None
    if label is None:
        raise ValueError(f"it has no label feature {label_name!r}")
    return image, label
