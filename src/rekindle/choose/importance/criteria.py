"""How important a sample is: IOWA's criteria. Low is unimportant; unknown counts as most important."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.percentiles import percentiles
from rekindle.choose.scores import Scores

CRITERIA = ("cross_entropy", "cross_entropy_of_iowa", "margin", "io")
_LEAST_PROBABILITY = 1e-30


def cross_entropy(scores: Scores) -> NDArray[np.float64]:
    """−log2 P(target): the less the model expects the right class, the more important the sample."""
    return _unless_unknown(-np.log2(_probability(scores)), scores)


def cross_entropy_of_iowa(scores: Scores) -> NDArray[np.float64]:
    """−P(target) · log2 P(target), as IOWA has it.

    It falls again below P = 1/e, so samples that the model has very wrong look as unimportant as those that
    it knows. That leaves out wrong labels, and hard samples as well.
    """
    probability = _probability(scores)
    return _unless_unknown(-probability * np.log2(probability), scores)


def margin(scores: Scores) -> NDArray[np.float64]:
    """1 − (P(target) − the largest P of another class): above 1 where the model is wrong."""
    found = 1 - (scores.probability.astype(np.float64) - scores.rival)
    return np.where(np.isnan(found), np.inf, found)


def io(scores: Scores, alpha: float) -> NDArray[np.float64]:
    """1 / (α · time to load + (1 − α) · size), both in units of their mean over all samples.

    The one criterion that makes the plan depend on a clock. Samples without a measurement count as average.
    """
    cost = alpha * _of_mean(scores.load_seconds) + (1 - alpha) * _of_mean(
        np.where(scores.nbytes >= 0, scores.nbytes, np.nan)
    )
    return 1 / np.maximum(cost, 1e-9)


def importance(scores: Scores, criteria: Sequence[str], alpha: float) -> NDArray[np.float64]:
    """One number per sample: a single criterion as it is; several as the mean of their percentiles.

    Percentiles, because the criteria have no unit in common. The loading cost counts for as much as all
    criteria of the model together.
    """
    functions: dict[str, Callable[[Scores], NDArray[np.float64]]] = {
        "cross_entropy": cross_entropy,
        "cross_entropy_of_iowa": cross_entropy_of_iowa,
        "margin": margin,
        "io": lambda scores: io(scores, alpha),
    }
    if len(criteria) == 1:
        return functions[criteria[0]](scores)
    by_model = [percentiles(functions[name](scores)) for name in criteria if name != "io"]
    parts = [np.mean(by_model, axis=0)] if by_model else []
    if "io" in criteria:
        parts.append(percentiles(io(scores, alpha)))
    return _unless_unknown(np.mean(parts, axis=0), scores)


def _probability(scores: Scores) -> NDArray[np.float64]:
    return np.clip(scores.probability.astype(np.float64), _LEAST_PROBABILITY, 1)


def _unless_unknown(values: NDArray[np.float64], scores: Scores) -> NDArray[np.float64]:
    return np.where(scores.known, values, np.inf)


def _of_mean(values: NDArray[np.floating]) -> NDArray[np.float64]:
    known = np.isfinite(values)
    mean = float(values[known].mean(dtype=np.float64)) if known.any() else 0.0
    return np.where(known, values, mean) / mean if mean > 0 else np.ones(len(values))
