"""Samples that are much like each other: what a choice does with copies.

A group of samples of one label has one number, in an array with an entry for every sample; −1 is a sample
without a copy. Arrays in, arrays out.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError

CopyMode = Literal["remove", "repeat"]


def without_copies(
    ids: NDArray[np.int64], groups: NDArray[Any], uniforms: NDArray[np.float64], copies: CopyMode
) -> NDArray[np.int64]:
    """The chosen samples with one random member standing for each group.

    "remove" leaves the other members out. "repeat" has the one trained on again in their places: as many
    samples as before, and fewer to load.
    """
    grouped = groups[ids] >= 0
    members = ids[grouped]
    order = members[np.lexsort((uniforms[members], groups[members]))]
    firsts, places = np.unique(groups[order], return_index=True)
    stands = order[places]
    if copies == "remove":
        return np.sort(np.concatenate([ids[~grouped], stands]))
    replaced = ids.copy()
    replaced[grouped] = stands[np.searchsorted(firsts, groups[members])]
    return replaced


def check_groups(groups: Any, size: int) -> None:
    """ArgumentError unless there is a whole number for each sample."""
    if groups.shape != (size,):
        raise ArgumentError(f"groups: {size} samples need a number each, but the shape is {groups.shape}")
