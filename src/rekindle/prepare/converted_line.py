"""The results for lines of the channels' bytes, which the kernels for units write to the batch."""

from __future__ import annotations

import numpy as np

from rekindle.core.compiled_code import check_compiled_code
from rekindle.core.compiler import part_of_kernels
from rekindle.errors import ArgumentError
from rekindle.prepare.fused_kernel import Bytes, Table, Values

check_compiled_code()


# A product and a sum may become one instruction, which rounds once: the result is exact only with that.
@part_of_kernels(fastmath={"contract"}, error_model="numpy")
def convert(source: Bytes, values: Table, c: int, to: Values) -> None:
    """A line of a channel: by table, by (value / 255 − mean) / std, or, given nothing, as it is."""
    if values.shape[1] == 256:
        table = values[c]
        for x in range(to.size):
            to[x] = table[source[x]]
    elif values.shape[1] == 3:
        # Each division is a product with a correction of its error.
        mean, std, reciprocal = values[c, 0], values[c, 1], values[c, 2]
        whole, part = np.float32(255), np.float32(1 / 255)
        for x in range(to.size):
            value = np.float32(source[x])
            quotient = value * part
            difference = quotient + (value - quotient * whole) * part - mean
            estimate = difference * reciprocal
            to[x] = estimate + (difference - estimate * std) * reciprocal
    else:
        for x in range(to.size):
            to[x] = source[x]


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
