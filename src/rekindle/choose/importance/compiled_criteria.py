"""What `criteria.py` has of 32-bit floats, to the bit, by compiled loops: for many millions of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance import criteria_kernel as kernels
from rekindle.choose.scores import Scores

_Part: TypeAlias = slice | NDArray[np.int64]
_Number = TypeVar("_Number", bound=np.number)
_Floats: TypeAlias = NDArray[np.float32]


def cross_entropy(scores: Scores, part: _Part, least: np.float32, in_bits: np.float32) -> _Floats:
    """−log2 P, of probabilities of `least` and more; NumPy's logarithm, as another one has other bits."""
    epoch, found = _some(scores.epoch, part), _memory(scores, part)
    kernels.clip_probabilities()(_some(scores.probability, part), least, found)
    np.log(found, out=found)
    kernels.entropies(epoch.dtype.name)(found, in_bits, epoch)
    return found


def margin(scores: Scores, part: _Part) -> _Floats:
    """1 − (P(target) − the largest P of another class)."""
    found = _memory(scores, part)
    kernels.margins()(_some(scores.probability, part), _some(scores.rival, part), found)
    return found


def io(
    times: Callable[[_Part], _Floats],
    nbytes: NDArray[np.number],
    mean: float,
    share: float,
    least: np.float32,
) -> Callable[[_Part], _Floats]:
    """1 / (what the times count for + `share` times the size in units of its mean), of at least `least`."""
    invert, numbers = kernels.invert_costs(), (np.float32(mean), np.float32(share), least)

    def found(part: _Part) -> _Floats:
        costs = times(part)
        invert(costs, np.ascontiguousarray(nbytes[part], dtype=np.float32), *numbers)
        return costs

    return found


def looked_up(bits: NDArray[np.uint16], table: _Floats) -> Callable[[_Part], _Floats]:
    """A function that gives the entries of a table of 65,536 for some samples."""
    look_up = kernels.look_up()

    def found(part: _Part) -> _Floats:
        some = _some(bits, part)
        entries = np.empty(len(some), dtype=np.float32)
        look_up(some, table, entries)
        return entries

    return found


def round_known(scores: Scores, part: slice, sums: NDArray[np.float64], rounded: _Floats) -> None:
    """Sums as 32-bit floats; infinite for samples that were never measured."""
    epoch = _some(scores.epoch, part)
    kernels.round_known(epoch.dtype.name)(sums, epoch, rounded)


def keep_the_others(
    values: _Floats, probability: _Floats, waiting: NDArray[np.bool_], confidence: float
) -> int:
    """Make infinite what may not wait from now on; returns how many samples may."""
    others = np.ascontiguousarray(probability), np.ascontiguousarray(waiting)
    return kernels.keep_the_others()(values, *others, np.float32(confidence))


def _some(everything: NDArray[_Number], part: _Part) -> NDArray[_Number]:
    """Those of some samples, in one piece: an array that is not kept is one number for all."""
    return np.ascontiguousarray(everything[part])


def _memory(scores: Scores, part: _Part) -> _Floats:
    return np.empty(len(scores.epoch[part]), dtype=np.float32)
