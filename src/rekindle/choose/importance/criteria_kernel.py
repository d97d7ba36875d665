"""IOWA's criteria, to the bit, by compiled loops: for many millions of samples.

Each does in one loop what NumPy does in several. Logarithms stay NumPy's, as others have other bits.
Numba takes about a second to compile them, once on a machine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.core.compiled_code import check_compiled_code, kernel
from rekindle.core.compiler import Signature

check_compiled_code()

_Floats = NDArray[np.float32]


def _looking_up() -> Signature:
    from numba import float32, types, uint16, void

    table = types.Array(float32, 1, "C", readonly=True)
    return void(types.Array(uint16, 1, "C", readonly=True), table, types.Array(float32, 1, "C"))


@kernel(_looking_up, boundscheck=False, error_model="numpy")
def look_up(bits: NDArray[np.uint16], table: _Floats, found: _Floats) -> None:
    """The entries of a table of 65,536."""
    for at in range(bits.size):
        found[at] = table[bits[at]]


def _costing() -> Signature:
    from numba import float32, types, void

    values = types.Array(float32, 1, "C", readonly=True)
    return void(types.Array(float32, 1, "C"), values, float32, float32, float32)


@kernel(_costing, boundscheck=False, error_model="numpy")
def invert_costs(
    costs: _Floats, nbytes: _Floats, mean: np.float32, share: np.float32, least: np.float32
) -> None:
    """From what the times to load cost to `io`: with the sizes' part, as a reciprocal."""
    for at in range(costs.size):
        size = nbytes[at]
        in_means = np.float32(size / mean) * share if size >= 0 else share
        cost = costs[at] + in_means
        costs[at] = np.float32(1) / (least if cost < least else cost)


def _subtracting() -> Signature:
    from numba import float32, types, void

    values = types.Array(float32, 1, "C", readonly=True)
    return void(values, values, types.Array(float32, 1, "C"))


@kernel(_subtracting, boundscheck=False, error_model="numpy")
def margins(probability: _Floats, rival: _Floats, found: _Floats) -> None:
    """`margin` of each sample."""
    for at in range(probability.size):
        value = np.float32(1) - np.float32(probability[at] - rival[at])
        found[at] = np.float32(np.inf) if np.isnan(value) else value


def _clipping() -> Signature:
    from numba import float32, types, void

    return void(types.Array(float32, 1, "C", readonly=True), float32, types.Array(float32, 1, "C"))


@kernel(_clipping, boundscheck=False, error_model="numpy")
def clip_probabilities(probability: _Floats, least: np.float32, found: _Floats) -> None:
    """From `least` to 1; NaN stays."""
    for at in range(probability.size):
        value = probability[at]
        value = least if value < least else value
        found[at] = np.float32(1) if value > np.float32(1) else value


def _finishing(epoch: str) -> Signature:
    from numba import float32, types, void

    epochs = types.Array(getattr(types, epoch), 1, "C", readonly=True)
    return void(types.Array(float32, 1, "C"), float32, epochs)


@kernel(_finishing, boundscheck=False, error_model="numpy")
def entropies(logs: _Floats, in_bits: np.float32, epoch: NDArray[np.signedinteger]) -> None:
    """From natural logarithms to `cross_entropy`."""
    for at in range(logs.size):
        logs[at] = np.float32(np.inf) if epoch[at] < 0 else -np.float32(logs[at] * in_bits)


def _rounding(epoch: str) -> Signature:
    from numba import float32, float64, types, void

    epochs = types.Array(getattr(types, epoch), 1, "C", readonly=True)
    return void(types.Array(float64, 1, "C", readonly=True), epochs, types.Array(float32, 1, "C"))


@kernel(_rounding, boundscheck=False, error_model="numpy")
def round_known(sums: NDArray[np.float64], epoch: NDArray[np.signedinteger], rounded: _Floats) -> None:
    """Sums as 32-bit floats; infinite for samples that were never measured."""
    for at in range(sums.size):
        rounded[at] = np.float32(np.inf) if epoch[at] < 0 else np.float32(sums[at])


def _keeping() -> Signature:
    from numba import boolean, float32, int64, types

    return int64(
        types.Array(float32, 1, "C"),
        types.Array(float32, 1, "C", readonly=True),
        types.Array(boolean, 1, "C", readonly=True),
        float32,
    )


@kernel(_keeping, boundscheck=False, error_model="numpy")
def keep_the_others(
    values: _Floats, probability: _Floats, waiting: NDArray[np.bool_], confidence: np.float32
) -> int:
    """Make infinite what may not wait from now on; returns how many samples may."""
    able = 0
    for at in range(values.size):
        value = values[at]
        may_wait = (
            (probability[at] >= confidence)
            & (not waiting[at])
            & (value < np.float32(np.inf))
            & (value > np.float32(-np.inf))
        )
        able += may_wait
        values[at] = value if may_wait else np.float32(np.inf)
    return able
