"""How important a sample is: IOWA's criteria. Low is unimportant; unknown counts as most important."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.percentiles import LevelCounts
from rekindle.choose.scores import Scores, stretches

CRITERIA = ("cross_entropy", "cross_entropy_of_iowa", "margin", "io")
_LEAST_PROBABILITY = 1e-30
_ALL = slice(None)
_Part: TypeAlias = slice | NDArray[np.int64]  # some samples
_Values: TypeAlias = NDArray[np.floating]
_Criterion: TypeAlias = Callable[[_Part], _Values]
# Numbers are 64-bit ones where a criterion counts by itself, and 32-bit ones where only levels do.
_Precision: TypeAlias = type[np.float64] | type[np.float32]


def cross_entropy(scores: Scores, part: _Part = _ALL, dtype: _Precision = np.float64) -> _Values:
    """−log2 P(target): the less the model expects the right class, the more important the sample."""
    return _unless_unknown(-_log2(_probability(scores, part, dtype)), scores, part)


def cross_entropy_of_iowa(scores: Scores, part: _Part = _ALL, dtype: _Precision = np.float64) -> _Values:
    """−P(target) · log2 P(target), as IOWA has it.

    It falls again below P = 1/e, so samples that the model has very wrong look as unimportant as those that
    it knows. That leaves out wrong labels, and hard samples as well.
    """
    probability = _probability(scores, part, dtype)
    return _unless_unknown(-probability * _log2(probability), scores, part)


def margin(scores: Scores, part: _Part = _ALL, dtype: _Precision = np.float64) -> _Values:
    """1 − (P(target) − the largest P of another class): above 1 where the model is wrong."""
    found: _Values = 1 - np.subtract(scores.probability[part], scores.rival[part], dtype=dtype)
    return np.where(np.isnan(found), dtype(np.inf), found)


def io(scores: Scores, alpha: float) -> _Criterion:
    """1 / (α · time to load + (1 − α) · size), both in units of their mean over all samples.

    The one criterion that makes the plan depend on a clock. Samples without a measurement count as average.
    """
    seconds, nbytes = _mean(scores, "load_seconds"), _mean(scores, "nbytes")

    def found(part: _Part) -> _Values:
        cost = alpha * _of_mean(scores.load_seconds[part], seconds)
        cost += (1 - alpha) * _of_mean(scores.nbytes[part], nbytes)
        values: _Values = np.reciprocal(np.maximum(cost, np.float32(1e-9)))
        return values

    return found


class Importance(NamedTuple):
    """One number per sample: `rounded` for all of them, and a function that gives those of some `exactly`."""

    rounded: NDArray[np.float32]
    exactly: _Criterion


def importance(scores: Scores, criteria: Sequence[str], alpha: float) -> Importance:
    """The samples' importance: a single criterion as it is; several as the mean of their percentiles.

    Percentiles, because the criteria have no unit in common. The loading cost counts for as much as all
    criteria of the model together.
    """
    size, alone = len(scores), len(criteria) == 1
    dtype: _Precision = np.float64 if alone else np.float32
    functions: dict[str, _Criterion] = {
        "cross_entropy": lambda part: cross_entropy(scores, part, dtype),
        "cross_entropy_of_iowa": lambda part: cross_entropy_of_iowa(scores, part, dtype),
        "margin": lambda part: margin(scores, part, dtype),
    }
    if "io" in criteria:
        functions["io"] = io(scores, alpha)
    by_model = sum(name != "io" for name in criteria)
    rounded = np.empty(size, dtype=np.float32)

    def first_one(part: slice) -> NDArray[np.float32]:
        rounded[part] = functions[criteria[0]](part)
        return rounded[part]

    weighted = []
    for number, name in enumerate(() if alone else criteria):
        share = (1 if name == "io" else 1 / by_model) / (2 if "io" in criteria and by_model else 1)
        counts = LevelCounts.of(functions[name] if number else first_one, size)
        weighted.append((functions[name], counts.adder(share * counts.percentiles())))

    def combined(part: _Part, first: _Values | None = None) -> _Values:
        found = np.zeros(len(scores.epoch[part]))
        for criterion, add_to in weighted:
            add_to(criterion(part) if first is None else first, found)
            first = None
        np.copyto(found, np.inf, where=scores.epoch[part] < 0)
        return found

    exactly = functions[criteria[0]] if alone else combined
    for part in stretches(size):
        rounded[part] = exactly(part) if alone else combined(part, rounded[part])
    return Importance(rounded, exactly)


def _probability(scores: Scores, part: _Part, dtype: _Precision) -> _Values:
    return np.clip(scores.probability[part].astype(dtype, copy=False), dtype(_LEAST_PROBABILITY), dtype(1))


def _log2(values: _Values) -> _Values:
    """Of 32-bit floats by the natural logarithm, which NumPy has for several at once."""
    if values.dtype == np.float64:
        return np.log2(values)
    logs = np.log(values)
    logs *= np.float32(1 / np.log(2))
    return logs


def _unless_unknown(values: _Values, scores: Scores, part: _Part) -> _Values:
    return np.where(scores.epoch[part] >= 0, values, values.dtype.type(np.inf))


def _mean(scores: Scores, name: str) -> float:
    """The mean of what is known of all samples; 0 if nothing is."""
    total, count, everything = 0.0, 0, scores.arrays()[name]
    for part in stretches(len(scores)):
        values = everything[part].astype(np.float32, copy=False)
        known = values >= 0
        values = values if known.all() else values[known]
        total, count = total + float(values.sum(dtype=np.float64)), count + len(values)
    return total / count if count else 0.0


def _of_mean(values: NDArray[np.generic], mean: float) -> _Values:
    """In units of the mean; 1 where nothing is known."""
    if mean <= 0:
        return np.ones(len(values), dtype=np.float32)
    floats = values.astype(np.float32)
    is_unknown = ~(floats >= 0)
    floats /= np.float32(mean)
    np.copyto(floats, np.float32(1), where=is_unknown)
    return floats
