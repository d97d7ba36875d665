"""LZF decompression without the GIL: the fast compression that h5py adds to HDF5."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.compiler import numba

check_compiled_code()


@numba.njit("i8(Array(u1, 1, 'C', readonly=True), u1[::1])", cache=True, nogil=True)
def _decompress(data: NDArray[np.uint8], out: NDArray[np.uint8]) -> np.int64:
    """The number of bytes written to `out`; -1 if the data is corrupt."""
    read, written = np.int64(0), np.int64(0)
    while read < data.size:
        control = np.int64(data[read])
        read += 1
        if control < 32:  # literal run: control + 1 bytes follow
            count = control + 1
            if read + count > data.size or written + count > out.size:
                return np.int64(-1)
            for n in range(count):
                out[written + n] = data[read + n]
            read += count
        else:  # back reference
            count = control >> 5
            if count == 7:
                if read >= data.size:
                    return np.int64(-1)
                count += np.int64(data[read])
                read += 1
            count += 2
            if read >= data.size:
                return np.int64(-1)
            start = written - ((control & 31) << 8) - np.int64(data[read]) - 1
            read += 1
            if start < 0 or written + count > out.size:
                return np.int64(-1)
            for n in range(count):
                out[written + n] = out[start + n]
        written += count
    return written


def decompress(data: bytes | memoryview, max_bytes: int) -> memoryview:
    """The decompressed data; ValueError if it is corrupt or more than `max_bytes`."""
    out = np.empty(max_bytes, dtype=np.uint8)
    source = np.frombuffer(data, dtype=np.uint8)
    source.flags.writeable = False
    count = _decompress(source, out)
    if count < 0:
        raise ValueError(f"not LZF, or longer than {max_bytes} bytes")
    return out[:count].data
