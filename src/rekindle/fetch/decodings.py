"""How the bytes of a packed sample are read: as they are, as an array, or as pieces of a chunked array."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.record_index import MOST_BYTES, MOST_CHUNK_BYTES, Decoding

_DTYPES = "?biufc"  # kinds of plain numbers
_ORDERS = {"HWC", "CHW", "HW", "CHW BGR", ""}  # what the axes of an image are; "" leaves an array as it is

# (file, offset or first chunk, length or number of chunks, part) -> the sample
Decode = Callable[[int, int, int, int], Any]


def decoder(decoding: Decoding, files: Sequence[ByteFile], chunks: NDArray[np.void]) -> Decode | None:
    """What makes a sample of a row; None where the bytes are the sample. FormatError for nonsense."""
    kind = decoding.get("kind")
    if kind == "bytes":
        return None
    try:
        dtype, shape = np.dtype(decoding["dtype"]), tuple(map(int, decoding["shape"]))
        order = decoding.get("order", "")
        if dtype.kind not in _DTYPES or order not in _ORDERS or (order and dtype != np.uint8):
            raise ValueError(f"{dtype} in order {order!r}")
        if min(shape, default=1) < 0 or len(shape) > 32:
            raise ValueError(f"shape {shape}")
        if _count(shape) * dtype.itemsize > MOST_BYTES:
            raise ValueError(f"shape {shape} is too large")
        if kind == "array":
            return _Array(files, dtype, shape, order)
        if kind == "chunks":
            chunk = tuple(map(int, decoding["chunk"]))
            if (
                len(chunk) != len(shape) + 1
                or min(chunk) < 1
                or max(_count(chunk), _count(shape)) * dtype.itemsize > MOST_CHUNK_BYTES
            ):
                raise ValueError(f"chunks of {chunk}")
            filters = [(str(name), int(value)) for name, value in decoding["filters"]]
            np.array(decoding.get("fill", 0)).astype(dtype)
            return ChunkedArray(files, chunks, dtype, shape, order, chunk, filters, decoding.get("fill", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{files[0].name!r}: its samples cannot be read: {error}") from error
    raise FormatError(f"{files[0].name!r}: its samples are of the kind {kind!r}, which is not known.")


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def as_image(array: NDArray[Any], order: str) -> NDArray[Any]:
    """The array as height × width × 3, if it is said to be an image."""
    if order in ("", "HWC") and (array.ndim != 3 or array.shape[2] != 1):
        return array
    if order.startswith("CHW"):
        array = array[::-1] if order == "CHW BGR" else array
        array = array.transpose(1, 2, 0)
    elif order == "HW":
        array = array[:, :, None]
    if order and array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    return np.ascontiguousarray(array)


class _Array:
    """Numbers that lie in the file as they are."""

    def __init__(
        self, files: Sequence[ByteFile], dtype: np.dtype[Any], shape: tuple[int, ...], order: str
    ) -> None:
        self._files, self._dtype, self._shape, self._order = files, dtype, shape, order
        self._length = _count(shape) * dtype.itemsize

    def __call__(self, file: int, offset: int, length: int, part: int) -> Any:
        if length != self._length:
            raise FormatError(
                f"{self._files[file].name!r} at byte {offset}: {length} bytes for an array of {self._shape}."
            )
        array = np.frombuffer(self._files[file].read(offset, length), dtype=self._dtype).reshape(self._shape)
        return as_image(array, self._order)


class ChunkedArray:
    """A sample that is cut into chunks, each of which may hold a part of several samples."""

    def __init__(
        self,
        files: Sequence[ByteFile],
        chunks: NDArray[np.void],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        order: str,
        chunk: tuple[int, ...],
        filters: Sequence[tuple[str, int]],
        fill: Any = 0,
    ) -> None:
        self._files, self._chunks, self._dtype, self._shape = files, chunks, dtype, shape
        self._order, self._chunk, self._filters, self._fill = order, chunk, filters, fill
        self._nbytes = _count(chunk) * dtype.itemsize
        self._grid = [-(-whole // piece) for whole, piece in zip(shape, chunk[1:], strict=True)]

    def __call__(self, file: int, offset: int, length: int, part: int) -> Any:
        if not 0 <= offset <= offset + length <= len(self._chunks) or length != _count(self._grid):
            raise FormatError(
                f"{self._files[file].name!r}: chunks {offset} to {offset + length} do not exist."
            )
        if part >= self._chunk[0]:
            raise FormatError(f"{self._files[file].name!r}: sample {part} of a chunk of {self._chunk[0]}.")
        if length == 1:
            one = self.chunk(offset)[part]
            return as_image(one[tuple(slice(whole) for whole in self._shape)], self._order)
        out = np.empty(self._shape, dtype=self._dtype)
        for number, place in enumerate(np.ndindex(*self._grid)):
            piece = self.chunk(offset + number)[part]
            starts = [one * size for one, size in zip(place, self._chunk[1:], strict=True)]
            ends = [min(a + b, c) for a, b, c in zip(starts, self._chunk[1:], self._shape, strict=True)]
            here = tuple(slice(a, b) for a, b in zip(starts, ends, strict=True))
            out[here] = piece[tuple(slice(b - a) for a, b in zip(starts, ends, strict=True))]
        return as_image(out, self._order)

    def chunk(self, number: int) -> NDArray[Any]:
        """One chunk, whole: what lies behind the end of the array is in it as well."""
        row = self._chunks[number]
        offset, length, number, mask = int(row["offset"]), int(row["length"]), int(row["file"]), row["mask"]
        if length == 0:  # Never written: all of it is the fill value.
            if self._dtype.kind == "V":
                return np.zeros(self._chunk, dtype=self._dtype)
            return np.full(self._chunk, self._fill, dtype=self._dtype)
        if number >= len(self._files):
            raise FormatError(f"{self._files[0].name!r}: a chunk of a file that is not there.")
        file = self._files[number]
        data: Any = file.read(offset, length)
        for place in range(len(self._filters) - 1, -1, -1):
            if not int(mask) >> place & 1:
                data = self._undo(data, *self._filters[place], file.name, offset)
        if len(data) != self._nbytes:
            raise FormatError(
                f"{file.name!r} at byte {offset}: a chunk has {len(data)} bytes where {self._nbytes} were "
                "expected. It is damaged."
            )
        return np.frombuffer(data, dtype=self._dtype).reshape(self._chunk)

    def _undo(self, data: Any, name: str, value: int, file: str, offset: int) -> Any:
        try:
            if name == "gzip":
                return _inflated(data, self._nbytes + 4)  # A checksum may be behind the pixels.
            if name == "lzf":
                from rekindle.fetch.lzf import decompress

                return decompress(data, self._nbytes + 4)
            if name == "shuffle":
                return _unshuffled(data, value)
            if name == "fletcher32":
                return _checked(data)
        except (ValueError, zlib.error) as error:
            raise FormatError(f"{file!r} at byte {offset}: a damaged chunk ({name}): {error}") from error
        raise FormatError(f"{file!r}: chunks go through the filter {name!r}, which is not known.")


def _inflated(data: Any, most: int) -> bytes:
    unpacker = zlib.decompressobj()
    out = unpacker.decompress(data, most)
    if not unpacker.eof:
        raise ValueError("it does not end where it should")
    return out


def _unshuffled(data: Any, size: int) -> Any:
    """Undo HDF5's shuffle: first bytes of all numbers, then second bytes, and so on."""
    if size <= 1:
        return data
    count = len(data) // size
    whole = np.frombuffer(data, dtype=np.uint8)
    out = np.empty(len(whole), dtype=np.uint8)
    out[: count * size].reshape(count, size)[:] = whole[: count * size].reshape(size, count).T
    out[count * size :] = whole[count * size :]
    return out.data


def _checked(data: Any) -> Any:
    """What is before HDF5's Fletcher checksum, if that is right."""
    if len(data) < 4:
        raise ValueError("too short for a checksum")
    body, told = bytes(data[:-4]), int.from_bytes(data[-4:], "little")
    padded = body + b"\0" if len(body) % 2 else body
    words = np.frombuffer(padded, dtype=">u2").astype(np.uint64)
    low = int(words.sum()) % 65535
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(65535)
    high = int((words * weights % np.uint64(65535)).sum()) % 65535
    # A sum that is a multiple of 65535 may be kept as either of its two forms.
    made = {(h << 16) | low_form for h in _forms(high) for low_form in _forms(low)}
    if told not in made:
        raise ValueError("its checksum is wrong")
    return body


def _forms(value: int) -> tuple[int, ...]:
    return (0, 65535) if value == 0 else (value,)
