"""Which samples are near each other: groups by hashes or embeddings, searched with FAISS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Metric = Literal["bits", "cosine", "l2"]
Vectors: TypeAlias = NDArray[np.uint8] | NDArray[np.float32]  # one row per sample
_MOST_PAIRS = 2**24  # that one search may find: bounds memory even if all samples are alike


class Near(NamedTuple):
    """A group: the rows of its members, and how far each is from the first (the first: from the nearest)."""

    rows: NDArray[np.int64]
    distances: NDArray[np.float64]


def near_each_other(
    vectors: Vectors, labels: NDArray[np.int64], threshold: float, metric: Metric
) -> list[Near]:
    """Groups of rows of one label that are at most `threshold` from the first row of their group.

    Rows are visited in order; each that is in no group yet takes all rows near it that are in none either. So
    groups are not long chains whose ends have nothing in common.

    `vectors` are rows of bytes, whose differing bits are counted, or of floats.

    >>> rows = np.array([[0, 1], [0, 1.1], [5, 5], [0, 1], [0, 1.25]], dtype=np.float32)
    >>> [near.rows.tolist() for near in near_each_other(rows, np.array([0, 0, 0, 1, 0]), 0.2, "l2")]
    [[0, 1]]
    """
    if metric == "cosine":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        firsts, distances = _around_firsts(vectors[rows], threshold, metric)
        order = np.argsort(firsts, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(firsts[order])) + 1)
        found += [Near(rows[part], distances[part]) for part in parts if len(part) > 1]
    return found


def _around_firsts(
    vectors: Vectors, threshold: float, metric: Metric
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each row the first one of its group, and the distance to it."""
    firsts = np.arange(len(vectors))
    apart = np.zeros(len(vectors))
    grouped = np.zeros(len(vectors), dtype=bool)
    for of, others, distances in _pairs(vectors, threshold, metric):
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        for start, stop in pairwise([*starts, len(of)]):
            first = of[start]
            if grouped[first]:
                continue
            free = start + np.flatnonzero(~grouped[others[start:stop]])
            if len(free):
                members = others[free]
                firsts[members], apart[members] = first, distances[free]
                apart[first] = distances[free].min()
                grouped[members] = grouped[first] = True
    return firsts, apart


def _pairs(
    vectors: Vectors, threshold: float, metric: Metric
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """The pairs of different rows within the threshold and their distances, a bounded number at a time."""
    import faiss

    index: Any  # of bits or of floats: classes with nothing in common
    width = vectors.shape[1]
    if metric == "bits":
        index, reach = faiss.IndexBinaryFlat(width * 8), int(threshold) + 1  # It finds what is below that.
    elif metric == "cosine":
        index, reach = faiss.IndexFlatIP(width), np.nextafter(np.float32(1 - threshold), np.float32(-2))
    else:
        index, reach = faiss.IndexFlatL2(width), np.nextafter(np.float32(threshold**2), np.float32(np.inf))
    index.add(vectors)
    together = max(1, _MOST_PAIRS // len(vectors))
    for first in range(0, len(vectors), together):
        ends, measured, others = index.range_search(vectors[first : first + together], reach)
        lengths = np.diff(ends.astype(np.int64)).astype(np.int64)
        of = first + np.repeat(np.arange(len(lengths)), lengths)
        differ = of != others
        distances = measured[differ].astype(np.float64)
        if metric == "cosine":
            distances = np.maximum(1 - distances, 0)
        elif metric == "l2":
            distances = np.sqrt(np.maximum(distances, 0))
        yield of[differ], others[differ], distances
