"""How important a sample is: IOWA's criteria. Low is unimportant; unknown counts as most important."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.percentiles import LevelCounts
from rekindle.choose.scores import MANY, STRETCH, Scores, stretches

CRITERIA = ("cross_entropy", "cross_entropy_of_iowa", "margin", "io")
_LEAST_PROBABILITY, _LEAST_COST = 1e-30, np.float32(1e-9)
_IN_BITS = np.float32(1 / np.log(2))
_ALL = slice(None)
_ALL_FLOAT16 = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
_Part: TypeAlias = slice | NDArray[np.int64]  # some samples
_Values: TypeAlias = NDArray[np.floating]
_Criterion: TypeAlias = Callable[[_Part], _Values]
Revise: TypeAlias = Callable[[slice, NDArray[np.float32]], None]
# Numbers are 64-bit ones where a criterion counts by itself, and 32-bit ones where only levels do.
_Precision: TypeAlias = type[np.float64] | type[np.float32]


def cross_entropy(scores: Scores, part: _Part = _ALL, dtype: _Precision = np.float64) -> _Values:
    """−log2 P(target): the less the model expects the right class, the more important the sample."""
    if dtype == np.float32 and _are_many(scores.loss):
        from rekindle.choose.importance import compiled_criteria

        return compiled_criteria.cross_entropy(scores, part, np.float32(_LEAST_PROBABILITY), _IN_BITS)
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
    if dtype == np.float32 and _are_many(scores.loss):
        from rekindle.choose.importance import compiled_criteria

        return compiled_criteria.margin(scores, part)
    found: _Values = np.subtract(scores.probability[part], scores.rival[part], dtype=dtype)
    np.subtract(dtype(1), found, out=found)
    np.copyto(found, dtype(np.inf), where=np.isnan(found))
    return found


def io(scores: Scores, alpha: float) -> _Criterion:
    """1 / (α · time to load + (1 − α) · size), both in units of their mean over all samples.

    The one criterion that makes the plan depend on a clock. Samples without a measurement count as average.
    """
    seconds = _weighted(scores.load_seconds, _mean(scores.load_seconds), alpha)
    mean, nbytes = _mean(scores.nbytes), scores.nbytes
    # In 16 and 32 bits, as they are unless a method of the user's reads them.
    if mean > 0 and _are_many(scores.load_seconds) and nbytes.dtype == np.float32:
        from rekindle.choose.importance import compiled_criteria

        return compiled_criteria.io(seconds, nbytes, mean, 1 - alpha, _LEAST_COST)
    sizes = _weighted(nbytes, mean, 1 - alpha)

    def found(part: _Part) -> _Values:
        cost = seconds(part)
        cost += sizes(part)
        np.clip(cost, _LEAST_COST, None, out=cost)
        return np.reciprocal(cost, out=cost)

    return found


class Importance(NamedTuple):
    """One number per sample: `rounded` for all of them, and a function that gives those of some `exactly`."""

    rounded: NDArray[np.float32]
    levels: LevelCounts  # of `rounded`
    exactly: _Criterion


def importance(
    scores: Scores, criteria: Sequence[str], alpha: float, revise: Revise | None = None
) -> Importance:
    """The samples' importance: a single criterion as it is; several as the mean of their percentiles.

    Percentiles, because the criteria have no unit in common. The loading cost counts for as much as all
    criteria of the model together. `revise` may change the rounded numbers of each stretch of samples, before
    they are counted and while they are in the processor's cache.
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

    def add(part: _Part, sums: NDArray[np.float64], first: _Values | None = None) -> None:
        for criterion, add_to in weighted:
            add_to(criterion(part) if first is None else first, sums)
            first = None

    def combined(part: _Part) -> _Values:
        sums = np.zeros(len(scores.epoch[part]))
        add(part, sums)
        return _unless_unknown(sums, scores, part)

    exactly = functions[criteria[0]] if alone else combined
    memory = np.empty(min(STRETCH, size))

    def finished(part: slice) -> NDArray[np.float32]:
        if alone:
            rounded[part] = exactly(part)
        else:
            sums = memory[: part.stop - part.start]
            sums[:] = 0
            add(part, sums, rounded[part])
            _round_known(sums, scores, part, rounded[part])
        if revise is not None:
            revise(part, rounded[part])
        return rounded[part]

    return Importance(rounded, LevelCounts.of(finished, size), exactly)


def _probability(scores: Scores, part: _Part, dtype: _Precision) -> _Values:
    return np.clip(scores.probability[part].astype(dtype, copy=False), dtype(_LEAST_PROBABILITY), dtype(1))


def _log2(values: _Values) -> _Values:
    """Of 32-bit floats by the natural logarithm, which NumPy has for several at once."""
    if values.dtype == np.float64:
        return np.log2(values)
    logs = np.log(values)
    logs *= _IN_BITS
    return logs


def _round_known(
    sums: NDArray[np.float64], scores: Scores, part: slice, rounded: NDArray[np.float32]
) -> None:
    if not _are_many(scores.loss):
        rounded[:] = _unless_unknown(sums, scores, part)
        return
    from rekindle.choose.importance import compiled_criteria

    compiled_criteria.round_known(scores, part, sums, rounded)


def _are_many(everything: NDArray[np.number]) -> bool:
    """Whether compiled loops pay, and there are some for these."""
    return len(everything) >= MANY and everything.dtype in (np.float16, np.float32)


def _unless_unknown(values: _Values, scores: Scores, part: _Part) -> _Values:
    np.copyto(values, values.dtype.type(np.inf), where=scores.epoch[part] < 0)
    return values


def _mean(everything: NDArray[np.number]) -> float:
    """The mean of what is known of all samples; 0 if nothing is."""
    in_float32 = _function_of(everything, lambda some: some.astype(np.float32, copy=False))
    total, count = 0.0, 0
    for part in stretches(len(everything)):
        values = in_float32(part)
        known = values >= 0
        values = values if known.all() else values[known]
        total, count = total + float(values.sum(dtype=np.float64)), count + len(values)
    return total / count if count else 0.0


def _weighted(everything: NDArray[np.number], mean: float, share: float) -> _Criterion:
    """A function that gives, for some samples, `share` times their number in units of the mean.

    That is 1 where nothing is known.
    """

    def of(values: NDArray[np.number]) -> _Values:
        if mean <= 0:
            return np.full(len(values), 1, dtype=np.float32) * share
        floats = values.astype(np.float32)
        is_unknown = ~(floats >= 0)
        floats /= np.float32(mean)
        np.copyto(floats, np.float32(1), where=is_unknown)
        floats *= share
        return floats

    return _function_of(everything, of)


def _function_of(everything: NDArray[np.number], of: Callable[[NDArray[np.number]], _Values]) -> _Criterion:
    """`of` some samples' numbers: of 16-bit floats by a table of all, as NumPy is slow to convert them."""
    if everything.dtype != np.float16 or len(everything) <= _ALL_FLOAT16.size:
        return lambda part: of(everything[part])
    with np.errstate(invalid="ignore"):  # NaNs that signal are among them.
        table, bits = of(_ALL_FLOAT16), everything.view(np.uint16)
    if _are_many(everything):
        from rekindle.choose.importance import compiled_criteria

        return compiled_criteria.looked_up(bits, table)
    return lambda part: np.take(table, bits[part], mode="clip")
