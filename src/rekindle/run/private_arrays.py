"""Arrays on their way to workers that are not forked: in one file of memory, mapped by all of them.

Each worker gets what it would have unpickled, an array of its own: its pages are those of the file until it
writes to them, and then copies (`MAP_PRIVATE`). The same is done with the pages of the main process's own
array, where that is safe, so that all of them together have the array once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import sys
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rekindle.core.memfd import anonymous_file, reserve

LEAST = 1 << 20  # bytes: a smaller array is pickled
_LEAST_REPLACED = 32 << 20  # bytes: from here on the C library gives an array pages of its own
_PAGE = mmap.PAGESIZE


class ArrayFile:
    """The file, and where in it each array is."""

    def __init__(self) -> None:
        self.fd, self._end = anonymous_file(0), 0
        self._close = weakref.finalize(self, os.close, self.fd)
        self._positions: dict[int, tuple[int, NDArray[Any]]] = {}  # by id, of arrays that are kept for that

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _descriptor, (reduction.DupFd(self.fd),)

    def reduce(self, array: NDArray[Any]) -> tuple[Callable[..., NDArray[Any]], tuple[Any, ...]]:
        """How to pickle an array: as a place in the file."""
        if id(array) not in self._positions:
            self._positions[id(array)] = self._write(array), array
        order = "C" if array.flags.c_contiguous else "F"
        # As pickle does it: before its fifth protocol, every array can be written to.
        writeable = array.flags.writeable or pickle.DEFAULT_PROTOCOL < 5
        return private_array, (
            self, self._positions[id(array)][0], array.nbytes, array.shape, array.dtype, order, writeable,
        )  # fmt: skip

    def _write(self, array: NDArray[Any]) -> int:
        """The position of an array's bytes, which begins as far into a page as in memory."""
        position = -(-self._end // _PAGE) * _PAGE + array.ctypes.data % _PAGE
        self._end = position + array.nbytes
        os.ftruncate(self.fd, -(-self._end // _PAGE) * _PAGE)
        reserve(self.fd, position, array.nbytes)
        may_replace = _may_replace_pages(array)
        left = memoryview(array.reshape(-1, order="A").view(np.uint8).data)
        at = position
        while left:
            written = os.pwrite(self.fd, left, at)
            left, at = left[written:], at + written
        if may_replace:
            _replace_pages(array, self.fd, position)
        return position


def is_shared(value: object) -> bool:
    """Whether an object is an array that is worth it, and as good when it is not pickled."""
    return (
        type(value) is np.ndarray
        and value.nbytes >= LEAST
        and not value.dtype.hasobject
        and value.dtype.names is None
        and (value.flags.c_contiguous or value.flags.f_contiguous)
    )


def private_array(
    fd: int, position: int, nbytes: int, shape: tuple[int, ...], dtype: Any, order: Any, writeable: bool
) -> NDArray[Any]:
    """An array with the bytes at a position of the file, to which only this process writes."""
    start = position // _PAGE * _PAGE
    memory = mmap.mmap(fd, position - start + nbytes, flags=mmap.MAP_PRIVATE, offset=start)
    array = np.ndarray(shape, dtype, memory, position - start, order=order)
    array.flags.writeable = writeable
    return array


def _descriptor(fd: Any) -> int:
    number: int = fd.detach()
    return number


def _may_replace_pages(array: NDArray[Any]) -> bool:
    """Whether an array's pages can be exchanged for others with the same bytes, and nobody notices.

    They must be ordinary memory of this process, and no other thread may be writing to them.
    """
    return (
        array.nbytes >= _LEAST_REPLACED
        and array.flags.owndata
        and sys.platform == "linux"
        and len(sys._current_frames()) == 1
        # A device may read the pages themselves, whatever is at their addresses.
        and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        and _is_ordinary_memory(array.ctypes.data, array.nbytes)
    )


def _is_ordinary_memory(start: int, nbytes: int) -> bool:
    """Whether addresses are within mappings that are private, can be written to and are of no file."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    covered = start  # up to here they are
    for line in lines:
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        first, last = (int(address, 16) for address in addresses.split("-"))
        if first <= covered < last and access == "rw-p" and inode == "0" and not name:
            covered = last
    return covered >= start + nbytes


def _replace_pages(array: NDArray[Any], fd: int, position: int) -> None:
    """Map the file's pages, privately, to where an array's whole pages are now."""
    first = -(-array.ctypes.data // _PAGE) * _PAGE
    last = (array.ctypes.data + array.nbytes) // _PAGE * _PAGE
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    fixed = mmap.MAP_PRIVATE | 0x10  # MAP_FIXED
    offset = position + first - array.ctypes.data
    mapped = library.mmap(first, last - first, mmap.PROT_READ | mmap.PROT_WRITE, fixed, fd, offset)
    if mapped != first:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {last - first} bytes of an array: {os.strerror(number)}")
