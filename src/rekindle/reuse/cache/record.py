"""A cached value as bytes, in aligned parts that need not be copied together before they are stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError

ALIGNMENT = 64  # bytes: a cache line, and more than any type needs


class UnknownTypeError(ArgumentError):
    """A value that cannot be cached; the message names its type."""


@dataclass(frozen=True, slots=True)
class Record:
    """A value as bytes: parts, each of which starts at a multiple of `ALIGNMENT`."""

    parts: list[NDArray[np.uint8]]
    nbytes: int

    @classmethod
    def of(cls, parts: list[NDArray[np.uint8]]) -> Record:
        """A value of these parts, of which there is at least one."""
        return cls(parts, sum(map(aligned, map(len, parts[:-1]))) + len(parts[-1]))

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Copy all parts to the start of `memory`."""
        start = 0
        for part in self.parts:
            end = start + len(part)
            memory[start:end] = part
            start = aligned(end)

    def joined(self) -> NDArray[np.uint8]:
        """All parts in one array."""
        memory = np.zeros(self.nbytes, dtype=np.uint8)
        self.write(memory)
        return memory


def aligned(nbytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
