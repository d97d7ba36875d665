"""Boxes of images, resized, flipped, converted and normalized: all samples of a unit in one call.

What `antialiased_resize.resample` and `fused_kernel.finish` do for one image, with the same results to the
bit. An image is a matrix of bytes, rows × (columns · 3). Its rows are resized, it is transposed, its columns
are resized as rows, and it is transposed again: now each channel is a plane, as in the result. Mirroring is
the order in which columns are written.

The kernel checks all that it is given before it reads or writes.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import NO_ALLOCATION, check_compiled_code, kernel
from rekindle.core.compiler import Signature, numba, part_of_kernels
from rekindle.prepare.converted_line import convert, in_rows, interleave
from rekindle.prepare.fused_kernel import Bytes, Table, Values
from rekindle.prepare.normalized_values import PAST_CACHES, wait_for_stores
from rekindle.prepare.plan_check import has_pixels, impossible
from rekindle.prepare.unit_plan import COLUMNS, Column, Plan, WriteImages

check_compiled_code()

_FLOAT = np.dtype(np.float32)
_KEEP = 8 << 20  # words: larger scratch memory is freed after use
_scratch = threading.local()


def _signature(floats: bool) -> Signature:
    """The types of the arguments, for results of floats or bytes."""
    value = numba.float32 if floats else numba.uint8
    pixels = numba.types.Array(numba.uint8, 1, "C", readonly=True)
    table, number = numba.types.Array(value, 2, "C"), numba.int64
    words, plan, sums = numba.uint64[::1], numba.int64[:, ::1], numba.uint16[::1]
    scratch = words, numba.uint8[::1], pixels, sums
    return number(pixels, number, plan, *scratch, table, table, table, number, number, numba.boolean)


@part_of_kernels(error_model="numpy")
def _resize(
    image: Bytes,
    start: int,
    stride: int,
    length: int,
    old: int,
    new: int,
    written: Bytes,
    step: int,
    backwards: bool,
    sums: NDArray[np.uint16],
) -> None:
    """Write `new` rows, `step` bytes apart, made of `old` ones of this length. As `antialiased_resize` does:
    weights are 1/256ths that add up to 256.
    """
    scale = old / new
    stretch = scale if scale > 1.0 else 1.0
    for y in range(new):
        centre = (y + 0.5) * scale
        first = int(centre - stretch + 0.5)
        if first < 0:
            first = 0
        last = int(centre + stretch + 0.5)
        if last > old:
            last = old
        total = 0.0
        for k in range(last - first):
            total += max(1.0 - abs((first + k - centre + 0.5) / stretch), 0.0)
        begin = step * (new - 1 - y if backwards else y)
        to = written[begin : begin + length]
        begin = start + first * stride
        running, given = 0.0, 0
        if last - first <= 4:  # The sum of a few rows needs no memory.
            w0 = w1 = w2 = w3 = np.uint16(0)
            b0 = b1 = b2 = b3 = begin
            for k in range(last - first):
                running += 256 * (max(1.0 - abs((first + k - centre + 0.5) / stretch), 0.0) / total)
                rounded = int(running + 0.5)
                w0, w1, w2, w3 = w1, w2, w3, np.uint16(rounded - given)
                b0, b1, b2, b3 = b1, b2, b3, begin + k * stride
                given = rounded
            r0, r1 = image[b0 : b0 + length], image[b1 : b1 + length]
            r2, r3 = image[b2 : b2 + length], image[b3 : b3 + length]
            for x in range(length):
                low = np.uint16(np.uint16(w0 * np.uint16(r0[x])) + np.uint16(w1 * np.uint16(r1[x])))
                high = np.uint16(np.uint16(w2 * np.uint16(r2[x])) + np.uint16(w3 * np.uint16(r3[x])))
                to[x] = np.uint8(np.uint16(np.uint16(low + high) + np.uint16(128)) >> np.uint16(8))
            continue
        for x in range(length):
            sums[x] = np.uint16(128)
        for k in range(last - first):
            running += 256 * (max(1.0 - abs((first + k - centre + 0.5) / stretch), 0.0) / total)
            rounded = int(running + 0.5)
            weight = np.uint16(rounded - given)
            given = rounded
            if weight > 0:
                row = image[begin + k * stride : begin + k * stride + length]
                for x in range(length):
                    sums[x] = np.uint16(sums[x] + np.uint16(weight * np.uint16(row[x])))
        for x in range(length):
            to[x] = np.uint8(sums[x] >> np.uint16(8))


@part_of_kernels(error_model="numpy")
def _transpose(words: NDArray[np.uint64], across: int, down: int) -> None:
    """Transpose the matrix of bytes in the first half of the memory, so many words across, into the second.

    8 × 8 bytes at a time, as in Hacker's Delight (7-3): in all rows at once bytes are exchanged with the row
    below, then pairs with the one below that, then fours; what is left is to transpose words.
    """
    masks = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)
    # Indices are unsigned: one that may be negative costs a test.
    n8, half = np.uint64(8), np.uint64(words.size // 2)
    a, d = np.uint64(across), np.uint64(down)
    for stage in range(3):
        shift, mask = n8 << np.uint64(stage), masks[stage]
        for y in range(8 * down):
            if y >> stage & 1:
                continue
            upper = words[y * across : (y + 1) * across]
            lower = words[(y + (1 << stage)) * across : (y + (1 << stage) + 1) * across]
            for j in range(across):
                t = (upper[j] >> shift ^ lower[j]) & mask
                lower[j] ^= t
                upper[j] ^= t << shift
    for j in range(a):
        for i in range(d):
            f, to_word = n8 * i * a + j, half + n8 * j * d + i
            for _ in range(8):
                words[to_word] = words[f]
                f += a
                to_word += d


@kernel(_signature, boundscheck=False, error_model="numpy", **NO_ALLOCATION)
def _write(
    pixels: Bytes,
    source: int,
    plan: Plan,
    words: NDArray[np.uint64],
    written: Bytes,  # the words as bytes, to write
    read: Bytes,  # and to read: of the same type as `pixels`
    sums: NDArray[np.uint16],  # for a row
    converted: Values,  # for a row of each channel, where channels are last
    values: Table,
    out: Values,
    rows: int,
    columns: int,
    channels_last: bool,
) -> int:
    """Write the plan's rows whose pixels these are; returns the row that is impossible, or −1."""
    tall, wide = (rows + 7) // 8, (columns + 7) // 8  # in words
    half = words.size // 2  # for the matrix, and for the transposed one
    if (
        plan.shape[1] != COLUMNS
        or not (0 < rows <= out.shape[1] and 0 < columns <= out.shape[1])
        or out.shape[1] != 3 * rows * columns
        or values.shape[0] != 3
        or written.size != 8 * words.size
        or read.size != 8 * words.size
        or half < 24 * tall * wide
        or sums.size < 24 * tall
        or converted.shape != (3, columns if channels_last else 0)
    ):
        return len(plan)
    past_caches = not channels_last and out.shape[1] * out.itemsize >= PAST_CACHES
    for n in range(plan.shape[0]):
        if plan[n, Column.SOURCE] != source:
            continue
        at, height, width = plan[n, Column.START], plan[n, Column.HEIGHT], plan[n, Column.WIDTH]
        top, left, box_height, box_width = (
            plan[n, Column.TOP],
            plan[n, Column.LEFT],
            plan[n, Column.BOX_HEIGHT],
            plan[n, Column.BOX_WIDTH],
        )
        box_wide = (3 * box_width + 7) // 8
        possible = (box_height > 0) & (box_width > 0) & (top >= 0) & (left >= 0)
        possible &= (top <= height - box_height) & (left <= width - box_width)
        possible &= (half >= 8 * tall * box_wide) & (sums.size >= 3 * box_width)
        if not possible or not has_pixels(plan, n, pixels.size, out.shape[0]):
            return n
        begin, mirrored = at + 3 * (top * width + left), plan[n, Column.MIRRORED] != 0
        _resize(pixels, begin, 3 * width, 3 * box_width, box_height, rows, written, 8 * box_wide, False, sums)
        _transpose(words, box_wide, tall)
        across = 24 * tall
        _resize(read, 8 * half, across, across, box_width, columns, written, across, mirrored, sums)
        _transpose(words, 3 * tall, wide)
        to = out[plan[n, Column.ROW]]
        # Planes without gaps are converted in one piece.
        if columns == 8 * wide and not channels_last and plan[n, Column.UPSIDE_DOWN] == 0:
            for c in range(3):
                begin, plane = 64 * tall * wide * c + 8 * half, rows * columns
                into = to[c * plane : (c + 1) * plane]
                convert(read[begin : begin + plane], values, c, into, past_caches)
            continue
        for y in range(rows):
            to_row = columns * (rows - 1 - y if plan[n, Column.UPSIDE_DOWN] else y)
            for c in range(3):
                begin = 8 * (half + (8 * tall * c + y) * wide)
                if channels_last:
                    into = converted[c]
                else:
                    into = to[c * rows * columns + to_row : c * rows * columns + to_row + columns]
                convert(read[begin : begin + columns], values, c, into, past_caches)
            if channels_last:
                interleave(converted, to[3 * to_row : 3 * (to_row + columns)])
    wait_for_stores()
    return -1


def compile_write(floats: bool) -> None:
    """Compile the kernel for results of floats or bytes, or load it."""
    _write(floats)


def box_writer(plan: Plan, values: Table, out: Values, widest: int) -> WriteImages:
    """A function that writes what the plan says of some pixels to `out`.

    Args:
        plan: Where each sample is, and what of it is wanted, when the function is called.
        values: A table (3 × 256), the constants of `normalization` (3 × 3), or nothing (3 × 0): bytes as
            they are.
        out: The rows that the plan names, samples × channels × rows × columns.
        widest: The greatest width of a box in the plan.

    """
    compiled = _write(out.dtype == _FLOAT)
    memory, channels_last = in_rows(out)
    rows, columns = out.shape[2:]
    scratch = _scratch_words(rows, columns, widest)
    converted: Values = np.empty((3, columns if channels_last else 0), dtype=out.dtype)

    def write(pixels: Bytes, source: int) -> None:
        wrong = compiled(
            pixels, source, plan, *scratch, converted, values, memory, rows, columns, channels_last
        )
        if wrong >= 0:
            raise impossible(plan, wrong, pixels, out)

    return write


_Scratch = tuple[NDArray[np.uint64], Bytes, Bytes, NDArray[np.uint16]]


def _scratch_words(rows: int, columns: int, widest: int) -> _Scratch:
    """Memory for two matrices, as words and as bytes, and for a row, that this thread used before."""
    tall, wide = -(-rows // 8), -(-columns // 8)
    needed = 16 * tall * max(3 * wide, -(-3 * widest // 8))
    length = max(3 * widest, 24 * tall)
    found: _Scratch | None = getattr(_scratch, "words", None)
    if found is None or found[0].size < needed or found[3].size < length:
        words = np.empty(needed + needed // 4 * 2, dtype=np.uint64)
        sums = np.empty(length + length // 4, dtype=np.uint16)
        found = words, words.view(np.uint8), words.view(np.uint8), sums
        if words.size <= _KEEP:
            _scratch.words = found
    return found
