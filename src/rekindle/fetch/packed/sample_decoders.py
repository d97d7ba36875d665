"""Decoders of packed samples: as bytes, as an array, or as an array that is stored in chunks."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.errors import DecodeError, FormatError
from rekindle.fetch.byte_files import ByteReader
from rekindle.fetch.packed.record_index import Decoding
from rekindle.fetch.source import Array

_NUMBERS = re.compile(r"[<>|=]?(?:\?|[biufc][0-9]{1,2})")  # dtypes of plain numbers
# What the axes of an image are, and which of them is colour; "" leaves an array as it is.
_COLOUR_AXES = {"HWC": 2, "CHW": 0, "CHW BGR": 0}
_CHUNK_COST = 4096  # bytes that could be decoded in the time that it takes to find and place a chunk

# (file, offset or first chunk, length or number of chunks, part) -> the sample
Decode = Callable[[int, int, int, int], Array]
_Buffer = bytes | memoryview


def decoder(
    decoding: Decoding,
    files: Sequence[ByteReader],
    chunks: NDArray[np.void],
    limits: Limits = DEFAULT_LIMITS,
) -> Decode | None:
    """The function that reads a sample, given its row; None where the bytes are the sample.

    FormatError if the description is invalid, or if a sample would cost more than the limits allow.
    """
    try:
        kind = decoding["kind"]
        if kind == "bytes":
            return None
        if kind == "damaged":
            return _Damaged(files)
        shape, order = _integers(decoding["shape"]), decoding.get("order", "")
        dtype = _dtype(decoding["dtype"])
        _check_axes(shape, order, dtype)
        if kind == "array":
            limits.check_encoded(_count(shape) * dtype.itemsize)
            return _Array(files, dtype, shape, order)
        if kind == "chunks":
            chunk = _integers(decoding["chunk"])
            if len(chunk) != len(shape) + 1 or min(chunk) < 1:
                raise ValueError(f"chunks of shape {chunk}")
            filters = [(str(name), int(value)) for name, value in decoding["filters"]]
            fill = _fill(decoding.get("fill", 0), dtype)
            made = ChunkedArray(files, chunks, dtype, shape, order, chunk, filters, fill)
            limits.check_array(max(made.cost, _count(shape) * dtype.itemsize))
            return made
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = "" if isinstance(error, DecodeError) else "cannot be decoded: "
        raise FormatError(f"{files[0].name!r}: its samples: {what}{_shortened(error)}") from error
    raise FormatError(f"{files[0].name!r}: samples of the unknown kind {kind!r:.80}.")


def _shortened(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= 500 else f"{text[:500]}…"


def _integers(given: object) -> tuple[int, ...]:
    """A shape, of at most as many axes as NumPy has; ValueError if it is none."""
    if not isinstance(given, list | tuple) or len(given) > 32:
        raise ValueError(f"{given!r:.80} is not a shape")
    if not all(type(length) is int and 0 <= length < 1 << 62 for length in given):
        raise ValueError(f"shape {given!r:.80}")
    return tuple(given)


def _dtype(given: object) -> np.dtype[np.generic]:
    if not isinstance(given, str) or _NUMBERS.fullmatch(given) is None:
        raise ValueError(f"{given!r:.80} is not a dtype of numbers")
    return np.dtype(given)


def _check_axes(shape: tuple[int, ...], order: object, dtype: np.dtype[np.generic]) -> None:
    """Raise ValueError if an image of this order cannot have this shape."""
    if order == "":
        return
    axes, colour = (2, None) if order == "HW" else (3, _COLOUR_AXES.get(str(order)))
    fits = len(shape) == axes and (order == "HW" or (colour is not None and shape[colour] in (1, 3)))
    if not fits or dtype != np.uint8:
        raise ValueError(f"{dtype} of shape {shape} in order {order!r:.80}")


def _fill(given: object, dtype: np.dtype[np.generic]) -> np.generic:
    """A fill value as it is stored; ValueError or OverflowError if it does not fit."""
    if not isinstance(given, int | float) or (dtype.kind in "iu" and not float(given).is_integer()):
        raise ValueError(f"the fill value {given!r:.80} is not of {dtype}")
    with np.errstate(all="ignore"):
        value: np.generic = np.full(1, given, dtype=dtype)[0]
    return value


def _count(shape: Sequence[int]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def as_image(array: Array, order: str) -> Array:
    """The array as height × width × 3, if its axes are those of an image."""
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


class _Damaged:
    """A record whose checksum was wrong when it was indexed: the error of that sample."""

    def __init__(self, files: Sequence[ByteReader]) -> None:
        self._files = files

    def __call__(self, file: int, offset: int, length: int, part: int) -> Array:
        raise FormatError(
            f"{self._files[file].name!r} at byte {offset}: wrong checksum of a record: corrupt. Make the "
            "file again, or leave the sample out (on_error= of the loader)."
        )


class _Array:
    """An array that is stored contiguously."""

    def __init__(
        self, files: Sequence[ByteReader], dtype: np.dtype[np.generic], shape: tuple[int, ...], order: str
    ) -> None:
        self._files, self._dtype, self._shape, self._order = files, dtype, shape, order
        self._length = _count(shape) * dtype.itemsize

    def __call__(self, file: int, offset: int, length: int, part: int) -> Array:
        if length != self._length:
            raise FormatError(
                f"{self._files[file].name!r} at byte {offset}: an array of shape {self._shape} needs "
                f"{self._length} bytes, the index has {length}."
            )
        array = np.frombuffer(self._files[file].read(offset, length), dtype=self._dtype).reshape(self._shape)
        return as_image(array, self._order)


class ChunkedArray:
    """A sample that is stored in chunks, each of which may hold a part of several samples."""

    def __init__(
        self,
        files: Sequence[ByteReader],
        chunks: NDArray[np.void],
        dtype: np.dtype[np.generic],
        shape: tuple[int, ...],
        order: str,
        chunk: tuple[int, ...],
        filters: Sequence[tuple[str, int]],
        fill: float | np.generic = 0,
    ) -> None:
        self._files, self._chunks, self._dtype, self._shape = files, chunks, dtype, shape
        self._order, self._chunk, self._filters, self._fill = order, chunk, filters, fill
        self._nbytes = _count(chunk) * dtype.itemsize
        self._grid = [-(-whole // piece) for whole, piece in zip(shape, chunk[1:], strict=True)]

    @property
    def cost(self) -> int:
        """The bytes that are decoded for one sample: those of each chunk that it has a part in."""
        return _count(self._grid) * max(self._nbytes, _CHUNK_COST)

    def __call__(self, file: int, offset: int, length: int, part: int) -> Array:
        if not 0 <= offset <= offset + length <= len(self._chunks) or length != _count(self._grid):
            raise FormatError(
                f"{self._files[file].name!r}: chunks {offset} to {offset + length} do not exist."
            )
        if part >= self._chunk[0]:
            raise FormatError(
                f"{self._files[file].name!r}: sample {part} of a chunk that holds {self._chunk[0]}."
            )
        if length == 1 and self._chunks["length"][offset]:
            one = self.chunk(offset)[part]
            return as_image(one[tuple(slice(whole) for whole in self._shape)], self._order)
        # Chunks that were never written are not made: of each, this sample may need a single byte.
        written = np.flatnonzero(self._chunks["length"][offset : offset + length]).tolist()
        out = np.empty(self._shape, dtype=self._dtype)
        if len(written) < length:
            out[...] = self._fill
        for number in written:
            piece = self.chunk(offset + number)[part]
            position = np.unravel_index(number, self._grid)
            starts = [int(one) * size for one, size in zip(position, self._chunk[1:], strict=True)]
            ends = [min(a + b, c) for a, b, c in zip(starts, self._chunk[1:], self._shape, strict=True)]
            here = tuple(slice(a, b) for a, b in zip(starts, ends, strict=True))
            out[here] = piece[tuple(slice(b - a) for a, b in zip(starts, ends, strict=True))]
        return as_image(out, self._order)

    def chunk(self, number: int) -> Array:
        """One chunk, with what it holds beyond the end of the array."""
        row = self._chunks[number]
        offset, length, number, mask = (int(row[name]) for name in ("offset", "length", "file", "mask"))
        if length == 0:  # Never written: all of it is the fill value.
            if self._dtype.kind == "V":
                return np.zeros(self._chunk, dtype=self._dtype)
            return np.full(self._chunk, self._fill, dtype=self._dtype)
        if number >= len(self._files):
            raise FormatError(f"{self._files[0].name!r}: a chunk is in file {number} of {len(self._files)}.")
        file = self._files[number]
        data = file.read(offset, length)
        for position in range(len(self._filters) - 1, -1, -1):
            if not mask >> position & 1:
                data = self._undo(data, *self._filters[position], file.name, offset)
        if len(data) != self._nbytes:
            raise FormatError(
                f"{file.name!r} at byte {offset}: a chunk has {len(data)} bytes instead of {self._nbytes}: "
                "corrupt."
            )
        return np.frombuffer(data, dtype=self._dtype).reshape(self._chunk)

    def _undo(self, data: _Buffer, name: str, value: int, file: str, offset: int) -> _Buffer:
        try:
            if name == "gzip":
                return _inflate(data, self._nbytes + 4)  # A checksum may follow the data.
            if name == "lzf":
                from rekindle.fetch.packed.hdf5.lzf import decompress

                return decompress(data, self._nbytes + 4)
            if name == "shuffle":
                return _unshuffle(data, value)
            if name == "fletcher32":
                return _without_checksum(data)
        except (ValueError, zlib.error) as error:
            raise FormatError(f"{file!r} at byte {offset}: a corrupt chunk ({name}): {error}") from error
        raise FormatError(f"{file!r}: chunks use the unknown filter {name!r}.")


def _inflate(data: _Buffer, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    out = inflater.decompress(data, max_bytes)
    if not inflater.eof:
        raise ValueError(f"it is truncated, or longer than {max_bytes} bytes")
    return out


def _unshuffle(data: _Buffer, size: int) -> _Buffer:
    """Undo HDF5's shuffle, which stores the first bytes of all numbers, then the second bytes, and so on."""
    if size <= 1:
        return data
    count = len(data) // size
    shuffled = np.frombuffer(data, dtype=np.uint8)
    out = np.empty(len(shuffled), dtype=np.uint8)
    out[: count * size].reshape(count, size)[:] = shuffled[: count * size].reshape(size, count).T
    out[count * size :] = shuffled[count * size :]
    return out.data


def _without_checksum(data: _Buffer) -> bytes:
    """What precedes HDF5's Fletcher checksum; ValueError if that is wrong."""
    if len(data) < 4:
        raise ValueError("too short for a checksum")
    body, stored = bytes(data[:-4]), int.from_bytes(data[-4:], "little")
    padded = body + b"\0" if len(body) % 2 else body
    words = np.frombuffer(padded, dtype=">u2").astype(np.uint64)
    low = int(words.sum()) % 65535
    weights = np.arange(len(words), 0, -1, dtype=np.uint64) % np.uint64(65535)
    high = int((words * weights % np.uint64(65535)).sum()) % 65535
    # 0 and 65535 are the same sum, of which either may be stored.
    if stored not in {one << 16 | two for one in _residues(high) for two in _residues(low)}:
        raise ValueError("wrong checksum")
    return body


def _residues(value: int) -> tuple[int, ...]:
    return (0, 65535) if value == 0 else (value,)
