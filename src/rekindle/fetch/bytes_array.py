"""Many byte strings in two arrays, as Arrow lays them out: the bytes of all, and where each one ends.

A million file names take 40 MB so, and 100 MB as Python objects. Forked workers share the arrays for good,
because no reference counts are written to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class BytesArray:
    """A sequence of byte strings."""

    data: NDArray[np.uint8]
    ends: NDArray[np.int64]

    @staticmethod
    def from_list(items: Sequence[bytes]) -> BytesArray:
        """The same byte strings as an array.

        >>> names = BytesArray.from_list([b"cat", b"", b"owl"])
        >>> len(names), names[0], names[2]
        (3, b'cat', b'owl')
        """
        ends = np.cumsum(np.fromiter(map(len, items), dtype=np.int64, count=len(items)))
        return BytesArray(np.frombuffer(b"".join(items), dtype=np.uint8), ends)

    def __len__(self) -> int:
        return len(self.ends)

    def chunks(self, size: int = 4096) -> Iterator[list[bytes]]:
        """All byte strings in order, in lists of at most `size`: quicker than one at a time."""
        start = 0
        for first in range(0, len(self.ends), size):
            ends = self.ends[first : first + size].tolist()
            data, offset = self.data[start : ends[-1]].tobytes(), start
            chunk = []
            for end in ends:
                chunk.append(data[start - offset : end - offset])
                start = end
            yield chunk

    def __getitem__(self, index: int) -> bytes:
        start = self.ends[index - 1] if index else 0
        return self.data[start : self.ends[index]].tobytes()
