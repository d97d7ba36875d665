"""The last steps in one pass: cut out, flip, convert, normalise, transpose, straight into the batch's memory.

Everything that happens to a pixel's value is one look into a table of 256 entries a channel: it holds what
the steps themselves make of each value, so the result is theirs to the last bit. Where they do no more than
convert and normalise, the values are computed instead, many at once (see `normal`). A window may reach beyond
the image (a crop with padding); what lies outside has the colour `fill`.

Compiled by numba when this module is first imported, and kept on disk by it. Python's lock is not held.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

_compiled: Any = numba.njit  # numba has no types
_array: Any = numba.types.Array
_SETTINGS = {"cache": True, "nogil": True, "boundscheck": False}
_INLINED = {**_SETTINGS, "inline": "always"}
# A product and a sum may become one instruction, which rounds once: what `_normalise` needs to be exact.
_FUSED = {**_SETTINGS, "fastmath": {"contract"}, "error_model": "numpy"}


@_compiled(**_FUSED)
def _normalise(source: Any, normal: Any, red: Any, green: Any, blue: Any) -> None:
    """Pixels as (value / 255 − mean) / std: each division is a product, and what that lacks is added."""
    m0, m1, m2 = normal[0, 0], normal[1, 0], normal[2, 0]  # means
    s0, s1, s2 = normal[0, 1], normal[1, 1], normal[2, 1]  # standard deviations
    r0, r1, r2 = normal[0, 2], normal[1, 2], normal[2, 2]  # 1 / them
    whole, part = np.float32(255), np.float32(1 / 255)
    for x in range(source.size // 3):
        v0, v1, v2 = np.float32(source[3 * x]), np.float32(source[3 * x + 1]), np.float32(source[3 * x + 2])
        q0, q1, q2 = v0 * part, v1 * part, v2 * part
        d0 = q0 + (v0 - q0 * whole) * part - m0
        d1 = q1 + (v1 - q1 * whole) * part - m1
        d2 = q2 + (v2 - q2 * whole) * part - m2
        e0, e1, e2 = d0 * r0, d1 * r1, d2 * r2
        red[x] = e0 + (d0 - e0 * s0) * r0
        green[x] = e1 + (d1 - e1 * s1) * r1
        blue[x] = e2 + (d2 - e2 * s2) * r2


@_compiled(**_INLINED)
def _values(source: Any, table: Any, normal: Any, red: Any, green: Any, blue: Any) -> None:
    """What becomes of a row of pixels."""
    if normal.size:
        _normalise(source, normal, red, green, blue)
        return
    first, second, third = table[0], table[1], table[2]
    for x in range(source.size // 3):
        red[x] = first[source[3 * x]]
        green[x] = second[source[3 * x + 1]]
        blue[x] = third[source[3 * x + 2]]


@_compiled(**_SETTINGS)
def _turned_round(line: Any, target: Any) -> None:
    count = line.size
    for x in range(count - 1, -1, -1):  # Counted down, it is done many at a time.
        target[count - 1 - x] = line[x]


@_compiled(**_INLINED)
def _finish(
    image: Any,
    top: int,
    left: int,
    mirrored: bool,
    upside_down: bool,
    fill: Any,
    table: Any,
    normal: Any,
    out: Any,
) -> None:
    height, width = image.shape[0], image.shape[1]
    rows, columns = out.shape[1], out.shape[2]
    # The columns of the window that lie in the image, and where they go.
    first = min(max(0, -left), columns)
    last = max(min(columns, width - left), first)
    count = last - first
    start = columns - last if mirrored else first
    line = np.empty((3, count), dtype=out.dtype)
    for y in range(rows):
        to = rows - 1 - y if upside_down else y
        if not 0 <= top + y < height or count == 0:
            for c in range(3):
                out[c, to, :] = table[c, fill[c]]
            continue
        # Slices that start at 0: an index that may be negative costs a test for each pixel.
        source = image[top + y].reshape(3 * width)[3 * (left + first) : 3 * (left + last)]
        end = start + count
        if mirrored:
            _values(source, table, normal, line[0], line[1], line[2])
            for c in range(3):
                _turned_round(line[c], out[c, to, start:end])
        else:
            red, green, blue = out[0, to, start:end], out[1, to, start:end], out[2, to, start:end]
            _values(source, table, normal, red, green, blue)
        if count < columns:
            for c in range(3):
                out[c, to, :start] = table[c, fill[c]]
                out[c, to, end:] = table[c, fill[c]]


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
        image = _array(byte, 3 + many, "C", readonly=many)
        table, normal, out = _array(value, 2, "C"), _array(real, 2, "C"), _array(value, 3 + many, layout)
        found.append(numba.void(image, *extra, place, place, flip, flip, byte[::1], table, normal, out))
    return found


@_compiled(_signatures(many=False), **_SETTINGS)
def finish(
    image: Any,
    top: int,
    left: int,
    mirrored: bool,
    upside_down: bool,
    fill: Any,
    table: Any,
    normal: Any,
    out: Any,
) -> None:
    """Write the window of `image` from (top, left) to `out`, which is channels × rows × columns.

    The image is rows × columns × 3 in one piece; `out` may have any strides, so channels can also come last
    in memory.
    """
    _finish(image, top, left, mirrored, upside_down, fill, table, normal, out)


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
    normal: Any,
    out: Any,
) -> None:
    """The same for many images of one size that lie in memory: `out[n]` is made of `images[indices[n]]`."""
    for n in range(indices.size):
        image, to = images[indices[n]], out[n]
        _finish(image, tops[n], lefts[n], mirrored[n], upside_down[n], fill, table, normal, to)


IDENTITY = np.ascontiguousarray(np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 256)))
NO_NORMAL = np.empty((0, 3), dtype=np.float32)
_WIDTH = 75  # of the trial: long enough for what is done many at a time, and for the rest


def normal(table: NDArray[Any], mean: NDArray[np.float32], std: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the kernel computes values with, if that gives the table's to the last bit; else `NO_NORMAL`.

    Tried out, on every value at every place of a row: it takes a processor that multiplies and adds at once.
    """
    if table.dtype != np.float32:
        return NO_NORMAL
    found = np.stack([mean, std, np.float32(1) / std], axis=1)
    grey = ((np.arange(256)[:, None] + np.arange(_WIDTH)) % 256).astype(np.uint8)
    image = np.ascontiguousarray(np.broadcast_to(grey[..., None], (256, _WIDTH, 3)))
    looked_up, one, other = np.empty((3, 3, 256, _WIDTH), dtype=np.float32)
    channels_last = np.moveaxis(other.reshape(256, _WIDTH, 3), 2, 0)
    fill = np.zeros(3, dtype=np.uint8)
    finish(image, 0, 0, False, False, fill, table, NO_NORMAL, looked_up)
    for computed in (one, channels_last):
        finish(image, 0, 0, False, False, fill, table, found, computed)
        if computed.tobytes() != looked_up.tobytes():
            return NO_NORMAL
    return found
