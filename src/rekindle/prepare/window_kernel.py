"""Windows of images, flipped, converted and normalized: all samples of a unit in one call.

What `fused_kernel.finish` does for one image, with the same results to the bit. Some rows at a time, the
window's bytes are written channel by channel to memory that stays in the processor's cache, with what lies
outside the image filled in; from there each channel is converted in one go.

The kernel checks all that it is given before it reads or writes.
"""

from __future__ import annotations

import numpy as np

from rekindle.core.compiled_code import NO_ALLOCATION, check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba, part_of_kernels
from rekindle.prepare.converted_line import convert, in_rows, interleave
from rekindle.prepare.fused_kernel import Bytes, Table, Values
from rekindle.prepare.normalized_values import PAST_CACHES, wait_for_stores
from rekindle.prepare.plan_check import has_pixels, impossible
from rekindle.prepare.unit_plan import COLUMNS, Column, Plan, WriteImages

check_compiled_code()

_FLOAT = np.dtype(np.float32)
_TOGETHER = 4096  # bytes of a channel, before they are converted


@part_of_kernels()
def _split(source: Bytes, red: Bytes, green: Bytes, blue: Bytes) -> None:
    """The channels of a row of pixels."""
    for x in range(red.size):
        red[x], green[x], blue[x] = source[3 * x], source[3 * x + 1], source[3 * x + 2]


@part_of_kernels()
def _reverse(line: Bytes, target: Bytes) -> None:
    count = line.size
    for x in range(count - 1, -1, -1):  # Counting down vectorises.
        target[count - 1 - x] = line[x]


def _signature(floats: bool) -> Signature:
    """The types of the arguments, for results of floats or bytes."""
    value = numba.float32 if floats else numba.uint8
    pixels = numba.types.Array(numba.uint8, 1, "C", readonly=True)
    table = numba.types.Array(value, 2, "C")
    out = numba.types.Array(value, 2, "C")
    plan, fill, flag, lines = numba.int64[:, ::1], numba.uint8[::1], numba.boolean, numba.uint8[:, ::1]
    return numba.int64(pixels, numba.int64, plan, fill, lines, lines, table, table, out, flag)


@kernel(_signature, boundscheck=False, error_model="numpy", **NO_ALLOCATION)
def _write(
    pixels: Bytes,
    source: int,
    plan: Plan,
    fill: Bytes,
    planes: Bytes,  # for some rows of each channel
    line: Bytes,  # for a row of each channel
    converted: Values,  # for some rows, where channels are last
    values: Table,
    out: Values,
    channels_last: bool,
) -> int:
    """Write the plan's rows whose pixels these are; returns the row that is impossible, or −1."""
    if plan.shape[1] != COLUMNS or out.shape[1] % 3 or values.shape[0] != 3 or fill.size != 3:
        return len(plan)
    most, farthest = out.shape[1] // 3, 1 << 31
    if planes.shape != (3, max(_TOGETHER, most)) or line.shape != (3, most) or converted.shape[0] != 3:
        return len(plan)
    if channels_last and converted.shape[1] != planes.shape[1]:
        return len(plan)
    past_caches = not channels_last and out.shape[1] * out.itemsize >= PAST_CACHES
    for n in range(plan.shape[0]):
        if plan[n, Column.SOURCE] != source:
            continue
        at, height, width = plan[n, Column.START], plan[n, Column.HEIGHT], plan[n, Column.WIDTH]
        top, left, rows, columns = (
            plan[n, Column.TOP],
            plan[n, Column.LEFT],
            plan[n, Column.BOX_HEIGHT],
            plan[n, Column.BOX_WIDTH],
        )
        possible = (rows > 0) & (columns > 0) & (rows <= most) & (columns <= most)
        possible &= (top > -farthest) & (top < farthest) & (left > -farthest) & (left < farthest)
        if not possible or rows * columns != most or not has_pixels(plan, n, pixels.size, out.shape[0]):
            return n
        mirrored, upside_down = plan[n, Column.MIRRORED] != 0, plan[n, Column.UPSIDE_DOWN] != 0
        # The columns of the window that lie inside the image, and where they are written.
        first = min(max(0, -left), columns)
        last = max(min(columns, width - left), first)
        count = last - first
        start = columns - last if mirrored else first
        end = start + count
        together = max(_TOGETHER // columns, 1)  # rows
        for begin in range(0, rows, together):
            stop = min(begin + together, rows)
            for y in range(begin, stop):
                row = top + (rows - 1 - y if upside_down else y)
                offset = (y - begin) * columns
                if not 0 <= row < height or count == 0:
                    for c in range(3):
                        planes[c, offset : offset + columns] = fill[c]
                    continue
                # Slices, since an index that may be negative costs a test for each pixel.
                there = at + 3 * (row * width + left + first)
                inside = pixels[there : there + 3 * count]
                into = planes[:, offset + start : offset + end]
                if mirrored:
                    _split(inside, line[0, :count], line[1, :count], line[2, :count])
                    for c in range(3):
                        _reverse(line[c, :count], into[c])
                else:
                    _split(inside, into[0], into[1], into[2])
                if count < columns:
                    for c in range(3):
                        planes[c, offset : offset + start] = fill[c]
                        planes[c, offset + end : offset + columns] = fill[c]
            size = (stop - begin) * columns
            to = out[plan[n, Column.ROW]]
            for c in range(3):
                if channels_last:
                    into_line = converted[c, :size]
                else:
                    into_line = to[c * most + begin * columns : c * most + begin * columns + size]
                convert(planes[c, :size], values, c, into_line, past_caches)
            if channels_last:
                interleave(converted, to[3 * begin * columns : 3 * (begin * columns + size)])
    wait_for_stores()
    return -1


def compile_write(floats: bool) -> None:
    """Compile the kernel for results of floats or bytes, or load it."""
    _write(floats)


def window_writer(plan: Plan, fill: Bytes, values: Table, out: Values) -> WriteImages:
    """A function that writes what the plan says of some pixels to `out`.

    Args:
        plan: Where each sample is, and what of it is wanted, when the function is called. Windows may extend
            beyond the image.
        fill: The colour that lies there.
        values: A table (3 × 256), the constants of `normalization` (3 × 3), or nothing (3 × 0): bytes as
            they are.
        out: The rows that the plan names, samples × channels × rows × columns.

    """
    compiled = _write(out.dtype == _FLOAT)
    rows, channels_last = in_rows(out)
    most = out.shape[2] * out.shape[3]
    together = max(_TOGETHER, most)
    planes, line = np.empty((3, together), dtype=np.uint8), np.empty((3, most), dtype=np.uint8)
    converted: Values = np.empty((3, together if channels_last else 0), dtype=out.dtype)

    def write(pixels: Bytes, source: int) -> None:
        wrong = compiled(pixels, source, plan, fill, planes, line, converted, values, rows, channels_last)
        if wrong >= 0:
            raise impossible(plan, wrong, pixels, out)

    return write
