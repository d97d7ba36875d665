"""A list of plain values in memory that processes share.

Python writes into an object whenever it is used (its reference count), so forked workers end up with copies
of all objects that they use, and workers that are not forked have copies from the start. Here the elements
are bytes, and become objects when they are asked for.
"""

from __future__ import annotations

import marshal
import mmap
import os
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from operator import index as as_index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, overload

import numpy as np

from rekindle.core.memfd import anonymous_file
from rekindle.core.plain_values import plain_values
from rekindle.errors import ArgumentError

if TYPE_CHECKING:
    from multiprocessing.resource_sharer import DupFd

_T = TypeVar("_T")
_AT_ONCE = 4096  # elements that are bytes objects at a time, on their way into the file
FORMAT = 2  # of marshal: the same bytes for equal values, whoever else refers to them


class SharedRows:
    """A file of memory with a number of elements; the file is closed with the last reference to this."""

    def __init__(self, fd: int, count: int, nbytes: int) -> None:
        self.fd, self.count, self.nbytes = fd, count, nbytes
        weakref.finalize(self, os.close, fd)
        whole = memoryview(mmap.mmap(fd, 8 * (count + 1) + nbytes, prot=mmap.PROT_READ))
        self.offsets = whole[: 8 * (count + 1)].cast("q")
        self.content = whole[8 * (count + 1) :]

    @classmethod
    def of(cls, values: Iterable[Any], count: int) -> SharedRows:
        """A file with these elements, so many of them."""
        fd = anonymous_file(0)
        try:
            offsets, position, start = array("q", [0]), 0, 8 * (count + 1)
            elements = iter(values)
            while some := [*map(marshal.dumps, islice(elements, _AT_ONCE), repeat(FORMAT))]:
                offsets.extend((position + np.cumsum([*map(len, some)])).tolist())
                position = _write(fd, b"".join(some), start + position) - start
            _write(fd, offsets, 0)
            return cls(fd, count, position)
        except BaseException:
            os.close(fd)
            raise

    def row(self, number: int) -> bytes | memoryview:
        """The bytes of one element."""
        offsets = self.offsets
        return self.content[offsets[number] : offsets[number + 1]]

    def load(self, number: int) -> Any:
        """One element, as a new object."""
        offsets = self.offsets
        return marshal.loads(self.content[offsets[number] : offsets[number + 1]])

    def __reduce__(self) -> tuple[Callable[..., SharedRows], tuple[object, ...]]:
        """To a process that is being started, the file itself; to any other place, what it holds."""
        if get_spawning_popen() is not None:
            return _received, (reduction.DupFd(self.fd), self.count, self.nbytes)
        return _rebuilt, ([self.load(number) for number in range(self.count)],)


def _write(fd: int, content: bytes | array[int], position: int) -> int:
    """Write all of it from a position on; the position behind it."""
    left = memoryview(content).cast("B")
    while left:
        written = os.pwrite(fd, left, position)
        left, position = left[written:], position + written
    return position


def _received(fd: DupFd, count: int, nbytes: int) -> SharedRows:
    return SharedRows(fd.detach(), count, nbytes)


def _rebuilt(values: list[object]) -> SharedRows:
    return SharedRows.of(values, len(values))


class SharedList(Sequence[_T]):
    """A read-only list whose elements are in memory that all workers share, for datasets to keep.

    Elements are None, bools, numbers, strings and bytes, and tuples, lists and dicts of them. Each access
    gives a new object, equal and of the same class; changing one changes nothing here.

    Args:
        values: The elements.

    Raises:
        ArgumentError: If any element is something else, an array or an object of a class of yours.

    Example:
        >>> import rekindle as rk
        >>> files = rk.SharedList([("a.jpg", 0), ("b.jpg", 1)])
        >>> files[1], len(files)
        (('b.jpg', 1), 2)

    """

    def __init__(self, values: Iterable[_T]) -> None:
        values = values if isinstance(values, list) else [*values]
        if plain_values(values, owned=False) is None:
            raise ArgumentError(
                "SharedList holds None, bools, numbers, strings and bytes, and tuples, lists and dicts of "
                f"them (exactly of these classes, at most 8 levels of them), but got {_kinds(values)}"
            )
        self._rows = SharedRows.of(values, len(values))

    def __len__(self) -> int:
        return self._rows.count

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | list[_T]:
        if isinstance(index, slice):
            return [*map(self._load, range(*index.indices(self._rows.count)))]
        return self._load(position_in(self._rows.count, index))

    def __iter__(self) -> Iterator[_T]:
        return map(self._load, range(self._rows.count))

    def __repr__(self) -> str:
        return f"SharedList of {len(self)} elements"

    def _load(self, number: int) -> _T:
        value: _T = self._rows.load(number)
        return value


def position_in(count: int, index: SupportsIndex) -> int:
    """The position that a list's index means; raises what a list raises."""
    try:
        number = as_index(index)
    except TypeError:
        raise TypeError(f"list indices must be integers or slices, not {type(index).__name__}") from None
    if not -count <= number < count:
        raise IndexError("list index out of range")
    return number + count if number < 0 else number


def _kinds(values: Iterable[object]) -> str:
    return "elements of " + ", ".join(sorted({type(value).__qualname__ for value in values})[:5])
