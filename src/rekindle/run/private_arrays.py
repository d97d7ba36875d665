"""Arrays on their way to workers that are not forked: in one file of memory, mapped by all of them.

Each worker gets what it would have unpickled, an array of its own: its pages are those of the file until it
writes to them, and then copies (`MAP_PRIVATE`). The main process keeps its own array beside the file: memory
of an allocator cannot be exchanged for pages of a file. What it gives back to the system and takes again
would have the bytes of the file where it expects zeros (as jemalloc does).
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from rekindle.core.memfd import anonymous_file, reserve

if TYPE_CHECKING:
    from multiprocessing.resource_sharer import DupFd

LEAST = 1 << 20  # bytes: a smaller array is pickled
_PAGE = mmap.PAGESIZE


class ArrayFile:
    """The file, and where in it each array is."""

    def __init__(self) -> None:
        self.fd, self._end = anonymous_file(0), 0
        self._close = weakref.finalize(self, os.close, self.fd)
        self._positions: dict[
            int, tuple[int, NDArray[np.generic]]
        ] = {}  # by id, of arrays that are kept for that

    def __reduce__(self) -> tuple[Callable[[DupFd], int], tuple[object]]:
        return _descriptor, (reduction.DupFd(self.fd),)

    def reduce(
        self, array: NDArray[np.generic]
    ) -> tuple[Callable[..., NDArray[np.generic]], tuple[object, ...]]:
        """How to pickle an array: as a place in the file."""
        if id(array) not in self._positions:
            self._positions[id(array)] = self._write(array), array
        order = "C" if array.flags.c_contiguous else "F"
        # As pickle does it: before its fifth protocol, every array can be written to.
        writeable = array.flags.writeable or pickle.DEFAULT_PROTOCOL < 5
        return private_array, (
            self, self._positions[id(array)][0], array.nbytes, array.shape, array.dtype, order, writeable,
        )  # fmt: skip

    def _write(self, array: NDArray[np.generic]) -> int:
        """The position of an array's bytes, at the beginning of a page."""
        position = -(-self._end // _PAGE) * _PAGE
        self._end = position + array.nbytes
        os.ftruncate(self.fd, -(-self._end // _PAGE) * _PAGE)
        reserve(self.fd, position, array.nbytes)
        left = memoryview(array.reshape(-1, order="A").view(np.uint8).data)
        at = position
        while left:
            written = os.pwrite(self.fd, left, at)
            left, at = left[written:], at + written
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
    fd: int,
    position: int,
    nbytes: int,
    shape: tuple[int, ...],
    dtype: np.dtype[np.generic],
    order: Literal["C", "F"],
    writeable: bool,
) -> NDArray[np.generic]:
    """An array with the bytes at a position of the file, to which only this process writes."""
    memory = mmap.mmap(fd, nbytes, flags=mmap.MAP_PRIVATE, offset=position)
    array = np.ndarray(shape, dtype, memory, order=order)
    array.flags.writeable = writeable
    return array


def _descriptor(fd: DupFd) -> int:
    return fd.detach()
