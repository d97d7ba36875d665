"""The results for lines of the channels' bytes, which the kernels for units write to the batch."""

from __future__ import annotations

import numpy as np

from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.compiler import part_of_kernels
from rekindle.errors import ArgumentError
from rekindle.prepare.fused_kernel import Bytes, Table, Values
from rekindle.prepare.normalized_values import (
    AT_ONCE,
    LINE,
    normalized,
    write_line,
    write_line_past_caches,
)

check_compiled_code()


@part_of_kernels(error_model="numpy")
def convert(source: Bytes, values: Table, c: int, to: Values, past_caches: bool) -> None:
    """A line of a channel: by table, by (value / 255 − mean) / std, or, given nothing, as it is.

    After lines that were written `past_caches`, call `wait_for_stores`.
    """
    if values.shape[1] == 256:
        table = values[c]
        for x in range(to.size):
            to[x] = table[source[x]]
    elif values.shape[1] == 3:
        _normalize(
            source,
            np.float32(values[c, 0]),
            np.float32(values[c, 1]),
            np.float32(values[c, 2]),
            to,
            past_caches,
        )
    else:
        for x in range(to.size):
            to[x] = source[x]


@part_of_kernels(error_model="numpy")
def _normalize(
    source: Bytes, mean: np.float32, std: np.float32, reciprocal: np.float32, to: Values, past_caches: bool
) -> None:
    read, written = np.uint64(source.ctypes.data), np.uint64(to.ctypes.data)
    many = to.size // AT_ONCE
    if past_caches and written % LINE == np.uint64(0) and to.size % AT_ONCE == 0:
        for _ in range(many):
            write_line_past_caches(read, written, mean, std, reciprocal)
            read += np.uint64(AT_ONCE)
            written += LINE
        return
    for _ in range(many):
        write_line(read, written, mean, std, reciprocal)
        read += np.uint64(AT_ONCE)
        written += LINE
    for x in range(many * AT_ONCE, to.size):
        to[x] = normalized(source[x], mean, std, reciprocal)


@part_of_kernels()
def interleave(lines: Values, to: Values) -> None:
    """Write three lines, one for each channel, as pixels."""
    red, green, blue = lines[0], lines[1], lines[2]
    for x in range(to.size // 3):
        to[3 * x] = red[x]
        to[3 * x + 1] = green[x]
        to[3 * x + 2] = blue[x]


def in_rows(out: Values) -> tuple[Values, bool]:
    """The memory of samples × channels × rows × columns, a row a sample; whether channels are last there."""
    channels_last = not out.flags.c_contiguous
    memory = out.transpose(0, 2, 3, 1) if channels_last else out
    if not memory.flags.c_contiguous:
        raise ArgumentError(f"an array of {out.shape}, strides {out.strides}, is no batch: it has gaps")
    return memory.reshape(len(out), out[0].size if len(out) else 0), channels_last
