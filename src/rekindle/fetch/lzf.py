"""LZF, the quick compression that h5py adds to HDF5, undone without Python's lock."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit("i8(Array(u1, 1, 'C', readonly=True), u1[::1])", cache=True, nogil=True)
def _decompress(data: Any, out: Any) -> Any:
    """How many bytes were written to `out`; -1 if the data is damaged."""
    place: Any = 0
    made: Any = 0
    while place < data.size:
        control: Any = np.int64(data[place])
        place += 1
        if control < 32:  # that many bytes and one more, as they are
            count = control + 1
            if place + count > data.size or made + count > out.size:
                return -1
            for n in range(count):
                out[made + n] = data[place + n]
            place += count
        else:  # bytes that came before
            count = control >> 5
            if count == 7:
                if place >= data.size:
                    return -1
                count += np.int64(data[place])
                place += 1
            count += 2
            if place >= data.size:
                return -1
            start = made - ((control & 31) << 8) - np.int64(data[place]) - 1
            place += 1
            if start < 0 or made + count > out.size:
                return -1
            for n in range(count):
                out[made + n] = out[start + n]
        made += count
    return made


def decompress(data: Any, most: int) -> Any:
    """What was compressed; ValueError if it is damaged or more than `most` bytes."""
    out = np.empty(most, dtype=np.uint8)
    source = np.frombuffer(data, dtype=np.uint8)
    source.flags.writeable = False
    count = _decompress(source, out)
    if count < 0:
        raise ValueError("it is not LZF, or longer than it should be")
    return out[:count].data
