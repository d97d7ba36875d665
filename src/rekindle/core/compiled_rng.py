"""The numbers of `counter_rng.uniforms`, to the bit, by a compiled kernel.

NumPy takes about a microsecond to start each of twenty operations, however few samples there are. A worker
draws for a few samples at a time, so for native datasets, which need compiled code anyway, the loop is
compiled: not before the first batch, which is drawn by NumPy then, but beside the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.core.compile_later import compiled_or_later
from rekindle.core.compiled_code import kernel

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature


def _signature() -> Signature:
    from numba import float64, int64, types, uint64, void

    return void(uint64, types.Array(int64, 1, "C", readonly=True), float64[:, ::1])


@kernel(_signature)
def _fill(base: int, samples: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    golden = np.uint64(0x9E3779B97F4A7C15)
    first, second = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
    one, unit = np.uint64(1), 2.0**-53
    for row in range(samples.size):
        seed = base + (np.uint64(samples[row]) + one) * golden
        seed = (seed ^ (seed >> np.uint64(30))) * first
        seed = (seed ^ (seed >> np.uint64(27))) * second
        seed ^= seed >> np.uint64(31)
        for column in range(out.shape[1]):
            seed += golden
            bits = (seed ^ (seed >> np.uint64(30))) * first
            bits = (bits ^ (bits >> np.uint64(27))) * second
            bits ^= bits >> np.uint64(31)
            out[row, column] = np.float64(bits >> np.uint64(11)) * unit


def load_uniforms() -> None:
    """Load the kernel, if it is compiled: before there are workers, which would each do it."""
    compiled_or_later(_fill)


def uniforms(
    seed: int,
    samples: Sequence[int] | NDArray[np.int64],
    turns: int | Sequence[int] | NDArray[np.int64],
    count: int,
) -> NDArray[np.float64]:
    """`counter_rng.uniforms` for step 0: an (n, count) array of numbers in [0, 1)."""
    fill = compiled_or_later(_fill)
    if fill is None or not isinstance(turns, int):
        return counter_rng.uniforms(seed, samples, turns, count=count)
    ids = np.ascontiguousarray(samples, dtype=np.int64)
    out = np.empty((len(ids), count))
    if count:
        fill(counter_rng.base(seed, 0, turns), ids, out)
    return out
