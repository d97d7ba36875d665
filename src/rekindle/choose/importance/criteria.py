"""How important a sample is: IOWA's criteria. Low is unimportant; unknown counts as most important."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.percentiles import LevelCounts
from rekindle.choose.scores import Scores, stretches

CRITERIA = ("cross_entropy", "cross_entropy_of_iowa", "margin", "io")
_LEAST_PROBABILITY = 1e-30
_ALL = slice(None)
_Values: TypeAlias = NDArray[np.floating]
_Criterion: TypeAlias = Callable[[slice], _Values]
# Numbers are 64-bit ones where a criterion counts by itself, and 32-bit ones where only levels do.
_Precision: TypeAlias = type[np.float64] | type[np.float32]


def cross_entropy(scores: Scores, part: slice = _ALL, dtype: _Precision = np.float64) -> _Values:
    """−log2 P(target): the less the model expects the right class, the more important the sample."""
    return _unless_unknown(-np.log2(_probability(scores, part, dtype)), scores, part)


def cross_entropy_of_iowa(scores: Scores, part: slice = _ALL, dtype: _Precision = np.float64) -> _Values:
    """−P(target) · log2 P(target), as IOWA has it.

    It falls again below P = 1/e, so samples that the model has very wrong look as unimportant as those that
    it knows. That leaves out wrong labels, and hard samples as well.
    """
    probability = _probability(scores, part, dtype)
    return _unless_unknown(-probability * np.log2(probability), scores, part)


def margin(scores: Scores, part: slice = _ALL, dtype: _Precision = np.float64) -> _Values:
    """1 − (P(target) − the largest P of another class): above 1 where the model is wrong."""
    found: _Values = 1 - np.subtract(scores.probability[part], scores.rival[part], dtype=dtype)
    return np.where(np.isnan(found), dtype(np.inf), found)


def io(scores: Scores, alpha: float) -> _Criterion:
    """1 / (α · time to load + (1 − α) · size), both in units of their mean over all samples.

    The one criterion that makes the plan depend on a clock. Samples without a measurement count as average.
    """
    seconds, nbytes = _mean(scores, "load_seconds"), _mean(scores, "nbytes")

    def found(part: slice) -> _Values:
        cost = alpha * _of_mean(scores.load_seconds[part], seconds)
        cost += (1 - alpha) * _of_mean(scores.nbytes[part], nbytes)
        values: _Values = np.reciprocal(np.maximum(cost, np.float32(1e-9)))
        return values

    return found


def importance(scores: Scores, criteria: Sequence[str], alpha: float) -> NDArray[np.float64]:
    """One number per sample: a single criterion as it is; several as the mean of their percentiles.

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
    found = np.zeros(size)
    by_model = sum(name != "io" for name in criteria)
    for name in criteria:
        criterion = functions[name]
        if alone:
            for part in stretches(size):
                found[part] = criterion(part)
            break
        share = (1 if name == "io" else 1 / by_model) / (2 if "io" in criteria and by_model else 1)
        counts = LevelCounts.of(_in_float32(criterion), size)
        weighted = counts.look_up(share * counts.percentiles())
        for part in stretches(size):
            found[part] += weighted(criterion(part))
    if not alone:
        np.copyto(found, np.inf, where=scores.epoch < 0)
    return found


def _in_float32(criterion: _Criterion) -> Callable[[slice], NDArray[np.float32]]:
    return lambda part: criterion(part).astype(np.float32, copy=False)


def _probability(scores: Scores, part: slice, dtype: _Precision) -> _Values:
    return np.clip(scores.probability[part].astype(dtype, copy=False), dtype(_LEAST_PROBABILITY), dtype(1))


def _unless_unknown(values: _Values, scores: Scores, part: slice) -> _Values:
    return np.where(scores.epoch[part] >= 0, values, values.dtype.type(np.inf))


def _known(values: NDArray[np.generic]) -> _Values:
    """Numbers, and NaN for those that are not known."""
    floats = values.astype(np.float32)
    floats[~(floats >= 0)] = np.nan
    return floats


def _mean(scores: Scores, name: str) -> float:
    """The mean of what is known of all samples; 0 if nothing is."""
    total, count = 0.0, 0
    for part in stretches(len(scores)):
        values = _known(scores.arrays()[name][part])
        known = values[np.isfinite(values)]
        total, count = total + float(known.sum(dtype=np.float64)), count + len(known)
    return total / count if count else 0.0


def _of_mean(values: NDArray[np.generic], mean: float) -> _Values:
    """In units of the mean; 1 where nothing is known."""
    if mean <= 0:
        return np.ones(len(values), dtype=np.float32)
    floats = _known(values)
    floats /= np.float32(mean)
    floats[np.isnan(floats)] = 1
    return floats
