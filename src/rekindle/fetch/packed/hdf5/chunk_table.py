"""Where the chunks of an HDF5 dataset lie, for the stand-alone `inspector_process`."""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
from typing import TYPE_CHECKING

import h5py
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rekindle.fetch.packed.hdf5.dataset_choice import UnsupportedError
else:  # A program imports its neighbour without the package around them.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from dataset_choice import UnsupportedError

    del sys.path[0]

MORE_CHUNKS = 1_000_000  # than the file has bytes: most of them would never have been written
# Of what h5py does not offer: how long the chunk is that the library finds at a position. h5py's own
# `get_chunk_info_by_coord` goes through all chunks, and so finds those that reading does not.
_size_of_chunk = ctypes.CDLL(h5py.h5d.__file__).H5Dget_chunk_storage_size
_size_of_chunk.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)]


def chunk_table(data: h5py.Dataset, fill: float | None) -> NDArray[np.int64]:
    """Offset, length and mask of every chunk, in order of position; a length of 0 if it was never written.

    ValueError if the library would not read it so: it finds a chunk as in a sorted list, and in a corrupt one
    not all that are there; and what it reads where there is none may not be the `fill` value.
    """
    grid = [-(-length // chunk) for length, chunk in zip(data.shape, data.chunks, strict=True)]
    count = 1
    for length in grid:
        count *= int(length)
    if count > MORE_CHUNKS + data.file.id.get_filesize():
        raise UnsupportedError(f"{data.name!r} has {count:,} chunks, more than the file has bytes.")
    table = np.zeros((count, 3), dtype=np.int64)
    in_order, previous = True, -1

    def visit(info: h5py.h5d.StoreInfo) -> None:
        nonlocal in_order, previous
        number = 0
        for start, chunk, length in zip(info.chunk_offset, data.chunks, grid, strict=True):
            position = start // chunk
            if start % chunk or position >= length:
                raise ValueError(f"{data.name!r}: a chunk at {info.chunk_offset}, outside of the array")
            number = number * length + position
        if table[number, 1]:
            raise ValueError(f"{data.name!r}: two chunks at {info.chunk_offset}")
        if not info.size:  # Which in the table means that it is not stored, and filled.
            raise ValueError(f"{data.name!r}: a chunk of no bytes at {info.chunk_offset}")
        table[number] = info.byte_offset, info.size, info.filter_mask
        in_order, previous = in_order and number > previous, number

    data.id.chunk_iter(visit)
    # Only an index of chunks that grows along another axis than the first is sorted otherwise.
    growing = [axis for axis, most in enumerate(data.maxshape) if most is None]
    if not in_order and (len(growing) != 1 or growing == [0]):
        raise ValueError(f"{data.name!r}: its chunks are not in order")
    missing = _check_found(data, table)
    if fill is not None and missing is not None:
        _check_fill(data, missing, fill)
    return table


def _check_found(data: h5py.Dataset, table: NDArray[np.int64]) -> tuple[int, ...] | None:
    """Where the last chunk would be that was never written, if there is one."""
    size, missing = ctypes.c_uint64(), None
    position = ctypes.c_uint64 * len(data.shape)
    starts = itertools.product(*map(range, itertools.repeat(0), data.shape, data.chunks))
    for start, length in zip(starts, table[:, 1].tolist(), strict=True):
        fails = _size_of_chunk(data.id.id, position(*start), ctypes.byref(size)) < 0
        if (0 if fails else size.value) != length:
            raise ValueError(f"{data.name!r}: the chunk at {start} is not found where it is listed")
        missing = start if fails else missing
    return missing


def _check_fill(data: h5py.Dataset, start: tuple[int, ...], fill: float) -> None:
    ends = map(min, map(int.__add__, start, data.chunks), data.shape)
    chunk = tuple(map(slice, start, ends))
    for before in (0, 1):  # The library may leave what is there.
        found = np.full([part.stop - part.start for part in chunk], before, data.dtype)
        data.read_direct(found, chunk)
        if found.tobytes() != np.full_like(found, fill).tobytes():
            raise ValueError(f"{data.name!r}: what was not written is not read as {fill}")
