"""The last steps in one pass: cut out, flip, convert, normalise, transpose, straight into the batch's memory.

Everything that happens to a pixel's value is one look into a table of 256 entries a channel: it holds what
the steps themselves make of each value, so the result is theirs to the last bit. A window may reach beyond
the image (a crop with padding); what lies outside has the colour `fill`.

Compiled by numba when this module is first imported, and kept on disk by it. Python's lock is not held.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_compiled: Any = numba.njit  # numba has no types
_array: Any = numba.types.Array
_SETTINGS = {"cache": True, "nogil": True, "boundscheck": False}
_INLINED = {"cache": True, "nogil": True, "boundscheck": False, "inline": "always"}


@_compiled(**_INLINED)
def _finish(
    image: Any, top: int, left: int, mirrored: bool, upside_down: bool, fill: Any, table: Any, out: Any
) -> None:
    height, width = image.shape[0], image.shape[1]
    rows, columns = out.shape[1], out.shape[2]
    # The columns of the window that lie in the image, and where they go.
    first = min(max(0, -left), columns)
    last = max(min(columns, width - left), first)
    count = last - first
    start = columns - last if mirrored else first
    for y in range(rows):
        to = rows - 1 - y if upside_down else y
        if not 0 <= top + y < height or count == 0:
            for c in range(3):
                out[c, to, :] = table[c, fill[c]]
            continue
        # Slices that start at 0: an index that may be negative costs a test for each pixel.
        source = image[top + y, left + first : left + last]
        for c in range(3):
            values = table[c]
            target = out[c, to, start : start + count]
            if mirrored:
                backwards = source[::-1]
                for x in range(count):
                    target[x] = values[backwards[x, c]]
            else:
                for x in range(count):
                    target[x] = values[source[x, c]]
            if count < columns:
                out[c, to, :start] = values[fill[c]]
                out[c, to, start + count :] = values[fill[c]]


def _signatures(many: bool) -> list[Any]:
    """The types that kernels are compiled for: floats and bytes out; the fast case first."""
    byte, real, flag = numba.uint8, numba.float32, numba.boolean
    place = numba.int64[::1] if many else numba.int64
    flip = flag[::1] if many else flag
    extra = (numba.int64[::1],) if many else ()
    found = []
    for value, layout in ((real, "C"), (real, "A"), (byte, "A")):
        # An exact match of types is found three times faster than one that takes a conversion; only arrays
        # of the user's own may be read-only.
        image = _array(byte, 3 + many, "C", readonly=True) if many else _array(byte, 3, layout)
        table, out = _array(value, 2, "C"), _array(value, 3 + many, layout)
        found.append(numba.void(image, *extra, place, place, flip, flip, byte[::1], table, out))
    return found


@_compiled(_signatures(many=False), **_SETTINGS)
def finish(
    image: Any, top: int, left: int, mirrored: bool, upside_down: bool, fill: Any, table: Any, out: Any
) -> None:
    """Write the window of `image` from (top, left) to `out`, which is channels × rows × columns.

    The image is rows × columns × 3; `out` may have any strides, so channels can also come last in memory.
    """
    _finish(image, top, left, mirrored, upside_down, fill, table, out)


@_compiled(_signatures(many=True), **_SETTINGS)
def finish_many(
    images: Any,
    indices: Any,
    tops: Any,
    lefts: Any,
    mirrored: Any,
    upside_down: Any,
    fill: Any,
    table: Any,
    out: Any,
) -> None:
    """The same for many images of one size that lie in memory: `out[n]` is made of `images[indices[n]]`."""
    for n in range(indices.size):
        image, to = images[indices[n]], out[n]
        _finish(image, tops[n], lefts[n], mirrored[n], upside_down[n], fill, table, to)


IDENTITY = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 256)))
