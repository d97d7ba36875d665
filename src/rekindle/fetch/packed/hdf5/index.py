"""Indexes HDF5 files: HDF5's library reports where datasets and chunks lie, in a process that may die of it.

References to variable-length data are followed here, through the file's global heaps, and labels are read
here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DecodeError, FormatError
from rekindle.fetch.byte_files import ByteReader
from rekindle.fetch.bytes_array import BytesArray
from rekindle.fetch.labels import number_classes
from rekindle.fetch.packed.hdf5.global_heap import REFERENCE, heap_ranges
from rekindle.fetch.packed.hdf5.inspector import Inspector
from rekindle.fetch.packed.hdf5.inspector_messages import Answer, Hdf5DatasetInfo
from rekindle.fetch.packed.record_index import (
    BYTES,
    CHUNK,
    MAX_DECODINGS,
    MAX_SAMPLE_BYTES,
    NO_LABEL,
    Decoding,
    IndexSettings,
    RecordIndex,
    check_ranges,
    make_rows,
)
from rekindle.fetch.packed.sample_decoders import ChunkedArray
from rekindle.fetch.source import Array

_MAX_RATIO = 2000  # no compression of HDF5 is better
_MORE_SAMPLES = 1_000_000  # than the file has bytes: most of them would never have been written

_Arrays = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True)
class _FileIndex:
    """The samples of one file."""

    rows: NDArray[np.void]
    decodings: Sequence[Decoding]
    chunks: NDArray[np.void]
    keys: Sequence[bytes] | None
    labels: Sequence[int | str] | None
    classes: Sequence[str] | None


def index_hdf5(
    files: Sequence[ByteReader],
    settings: IndexSettings,
    report: Callable[[int], None],
    limits: Limits = DEFAULT_LIMITS,
    inspector: Inspector | None = None,
) -> RecordIndex:
    """The samples of HDF5 files. Settings: `images`, `labels`: names of datasets (or of a group)."""
    own = inspector or Inspector()
    try:
        parts, done = [], 0
        for file in files:
            parts.append(_index_file(own, file, settings, limits))
            done += file.size
            report(done)
    finally:
        if inspector is None:
            own.close()
    return _concatenate(parts)


def _index_file(
    inspector: Inspector, file: ByteReader, settings: IndexSettings, limits: Limits
) -> _FileIndex:
    answer, arrays = inspector.inspect(file, settings, limits)
    try:
        if "images" not in answer:
            return _index_samples(file, answer, arrays["ranges"])
        labels = _labels(file, answer, arrays, limits)
        keys = None
        if "keys" in answer:
            keys = _strings(file, answer["keys"], answer["base"], arrays.get("keys"), limits)
        rows, decoding, chunks = _index_dataset(
            file, answer["images"], answer["base"], arrays.get("images"), limits
        )
    except (KeyError, TypeError, ValueError, OverflowError, IndexError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{file.name!r} at byte 0: a corrupt description: {error}") from error
    for what, found in (("labels", labels), ("names", keys)):
        if found is not None and len(found) != len(rows):
            raise FormatError(f"{file.name!r} at byte 0: {len(found)} {what} for {len(rows)} images.")
    return _FileIndex(rows, [decoding], chunks, keys, labels, answer.get("classes"))


def _index_samples(file: ByteReader, answer: Answer, ranges: NDArray[np.int64]) -> _FileIndex:
    """The samples of a file with a dataset a sample."""
    check_ranges(ranges[:, 0], ranges[:, 1], file)
    decodings = [BYTES]
    number_of: dict[tuple[int, ...], int] = {(): 0}
    numbers = []
    for shape in answer["shapes"]:
        if tuple(shape) not in number_of:
            number_of[tuple(shape)] = len(decodings)
            decodings.append(_array_decoding("|u1", shape))
        numbers.append(number_of[tuple(shape)])
    if len(decodings) > MAX_DECODINGS:
        raise FormatError(f"{file.name!r} at byte 0: images of more than {MAX_DECODINGS:,} sizes.")
    rows = make_rows(ranges[:, 0], ranges[:, 1], decodings=numbers)
    names = [name.encode("utf-8", errors="replace") for name in answer["names"]]
    labels = [label for label in answer["sample_labels"] if label is not None]
    if labels and len(labels) < len(rows):
        raise FormatError(
            f"{file.name!r} at byte 0: {len(rows) - len(labels)} of {len(rows)} samples have no label."
        )
    return _FileIndex(rows, decodings, np.empty(0, dtype=CHUNK), names, labels or None, None)


def _array_decoding(dtype: str, shape: Sequence[int]) -> Decoding:
    return {"kind": "array", "dtype": dtype, "shape": list(shape), "order": _order(dtype, shape)}


def _order(dtype: str, shape: Sequence[int]) -> str:
    """What the axes of an image are: the last is colour if it has one or three entries, or else the first."""
    if np.dtype(dtype) != np.uint8:
        return ""
    if len(shape) == 2:
        return "HW"
    if len(shape) == 3 and shape[2] in (1, 3):
        return "HWC"
    return "CHW" if len(shape) == 3 and shape[0] in (1, 3) else ""


def _chunks_of(file: ByteReader, table: NDArray[np.int64]) -> NDArray[np.void]:
    check_ranges(table[:, 0], table[:, 1], file)
    chunks = np.zeros(len(table), dtype=CHUNK)
    chunks["offset"], chunks["length"], chunks["mask"] = table[:, 0], table[:, 1], table[:, 2]
    return chunks


def _index_dataset(
    file: ByteReader, info: Hdf5DatasetInfo, base: int, table: NDArray[np.int64] | None, limits: Limits
) -> tuple[NDArray[np.void], Decoding, NDArray[np.void]]:
    """The samples of one dataset: rows, how they are decoded, and chunks."""
    no_chunks = np.empty(0, dtype=CHUNK)
    if info["kind"] == "vlen":
        offsets, lengths = heap_ranges(file, _references(file, info, table, limits), base)
        return make_rows(offsets, lengths), BYTES, no_chunks
    _check_count(file, info)
    count, *shape = info["shape"]
    dtype = np.dtype(info["dtype"])
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not 0 < nbytes <= MAX_SAMPLE_BYTES or count * nbytes > _MAX_RATIO * file.size + (64 << 20):
        raise FormatError(
            f"{file.name!r} at byte 0: {count:,} samples of {nbytes:,} bytes, the file has {file.size:,}: "
            "corrupt."
        )
    if table is None:
        if info["size"] < count * nbytes or info["offset"] + count * nbytes > file.size:
            raise FormatError(
                f"{file.name!r} at byte {info['offset']}: {count} samples of {nbytes} bytes, the dataset has "
                f"{info['size']}, the file {file.size}: truncated or corrupt."
            )
        decoding = BYTES if info["kind"] == "fixed" else _array_decoding(info["dtype"], shape)
        offsets = info["offset"] + np.arange(count, dtype=np.int64) * nbytes
        return make_rows(offsets, nbytes), decoding, no_chunks
    if info["kind"] == "fixed":
        raise FormatError(
            f"{file.name!r}: {info['name']!r} has strings of fixed length in chunks. Copy it to a contiguous "
            "dataset."
        )
    chunks = _chunks_of(file, table)
    samples_per_chunk = info["chunk"][0]
    chunks_per_sample = len(chunks) // max(1, -(-count // samples_per_chunk))
    numbers = np.arange(count, dtype=np.int64)
    decoding = {
        "kind": "chunks",
        "dtype": info["dtype"],
        "shape": shape,
        "order": _order(info["dtype"], shape),
        "chunk": info["chunk"],
        "filters": info["filters"],
        "fill": info["fill"],
    }
    first = numbers // samples_per_chunk * chunks_per_sample
    return make_rows(first, chunks_per_sample, parts=numbers % samples_per_chunk), decoding, chunks


def _check_count(file: ByteReader, info: Hdf5DatasetInfo) -> None:
    """Raise FormatError if a dataset has more entries than anybody can have written to the file."""
    if info["shape"][0] > _MORE_SAMPLES + file.size:
        raise FormatError(
            f"{file.name!r} at byte 0: {info['name']!r} has {info['shape'][0]:,} entries, the file "
            f"{file.size:,} bytes: corrupt."
        )


def _references(
    file: ByteReader, info: Hdf5DatasetInfo, table: NDArray[np.int64] | None, limits: Limits
) -> NDArray[np.void]:
    """The references of a dataset of variable-length data."""
    return _read(file, info, table, REFERENCE, limits).view(np.void).view(REFERENCE)


def _read(
    file: ByteReader,
    info: Hdf5DatasetInfo,
    table: NDArray[np.int64] | None,
    dtype: np.dtype[np.generic],
    limits: Limits,
) -> Array:
    """All entries of a 1-D dataset."""
    _check_count(file, info)
    (count,) = info["shape"]
    if count * dtype.itemsize > file.size:  # Most of them were never written, or compress well.
        _check_array(file, info, count * dtype.itemsize, limits)
    if table is None:
        if count * dtype.itemsize > info["size"]:
            raise FormatError(
                f"{file.name!r} at byte {info['offset']}: {info['name']!r} needs {count * dtype.itemsize} "
                f"bytes, {info['size']} are stored: truncated or corrupt."
            )
        return np.frombuffer(file.read(info["offset"], count * dtype.itemsize), dtype=dtype)
    (length,) = info["chunk"]
    _check_array(file, info, length * dtype.itemsize, limits)
    chunks = _chunks_of(file, table)
    array = ChunkedArray([file], chunks, dtype, (), "", (length,), info["filters"], info["fill"])
    out = np.zeros(count, dtype=dtype)
    if dtype.names is None and dtype.kind != "S":
        out[...] = info["fill"]
    for number in np.flatnonzero(chunks["length"]).tolist():
        start = number * length
        out[start : start + length] = array.chunk(number)[: count - start]
    return out


def _check_array(file: ByteReader, info: Hdf5DatasetInfo, nbytes: int, limits: Limits) -> None:
    try:
        limits.check_array(nbytes)
    except DecodeError as error:
        raise FormatError(f"{file.name!r}: {info['name']!r}, whole or a chunk of it: {error}") from error


def _labels(file: ByteReader, answer: Answer, arrays: _Arrays, limits: Limits) -> list[int | str] | None:
    if "labels" not in answer:
        return None
    info, table = answer["labels"], arrays.get("labels")
    if info["kind"] == "numbers":
        dtype = np.dtype(info["dtype"])
        if dtype.kind not in "iu":
            raise FormatError(f"{file.name!r} at byte 0: labels of type {dtype}, expected integers.")
        numbers: list[int | str] = _read(file, info, table, dtype, limits).astype(np.int64).tolist()
        return numbers
    texts = _strings(file, info, answer["base"], table, limits)
    return [text.decode("utf-8", errors="replace") for text in texts]


def _strings(
    file: ByteReader, info: Hdf5DatasetInfo, base: int, table: NDArray[np.int64] | None, limits: Limits
) -> list[bytes]:
    """The strings of a dataset."""
    if info["kind"] == "vlen":
        offsets, lengths = heap_ranges(file, _references(file, info, table, limits), base)
        ranges = zip(offsets.tolist(), lengths.tolist(), strict=True)
        return [bytes(file.read(offset, length)).rstrip(b"\0") for offset, length in ranges]
    dtype = np.dtype(info["dtype"].replace("V", "S"))
    if dtype.kind != "S":
        raise FormatError(f"{file.name!r} at byte 0: {info['name']!r} is of type {dtype}, expected strings.")
    texts: list[bytes] = _read(file, info, table, dtype, limits).tolist()
    return texts


def _concatenate(parts: Sequence[_FileIndex]) -> RecordIndex:
    """One index of several files."""
    all_rows: list[NDArray[np.void]] = []
    all_chunks: list[NDArray[np.void]] = []
    decodings: list[Decoding] = []
    names: list[bytes] = []
    labels: list[int | str] = []
    for number, part in enumerate(parts):
        rows, chunks = part.rows.copy(), part.chunks.copy()
        is_chunked = np.array([how["kind"] == "chunks" for how in part.decodings])[rows["decoding"]]
        rows["offset"][is_chunked] += sum(len(before) for before in all_chunks)
        rows["file"], chunks["file"] = number, number
        rows["decoding"] += len(decodings)
        all_rows.append(rows)
        all_chunks.append(chunks)
        decodings += part.decodings
        names += part.keys or []
        labels += part.labels or []
    rows = np.concatenate(all_rows)
    classes = next((part.classes for part in parts if part.classes is not None), None)
    if labels and len(labels) != len(rows):
        raise FormatError("some of the HDF5 files have labels, and some have none.")
    if all(isinstance(label, int) for label in labels):
        rows["label"] = labels or NO_LABEL
    else:
        classes, rows["label"] = number_classes([str(label) for label in labels], "the HDF5 files")
    named = BytesArray.from_list(names) if len(names) == len(rows) else None
    return RecordIndex("hdf5", rows, decodings, np.concatenate(all_chunks), named, classes)
