"""Which samples are near each other: groups from hashes or embeddings, by FAISS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Metric = Literal["bits", "cosine", "l2"]
_MOST_PAIRS = 2**24  # that a search may find at once: a bound on memory, even if everything is alike


class Near(NamedTuple):
    """A group: the rows of its members, and how far each is from the nearest other one."""

    rows: NDArray[np.int64]
    distances: NDArray[np.float64]


def near_each_other(
    vectors: NDArray[Any], labels: NDArray[np.int64], threshold: float, metric: Metric
) -> list[Near]:
    """All that hangs together by pairs of one label that are at most `threshold` apart.

    `vectors` are rows of bytes, of which different bits are counted, or of floats.

    >>> rows = np.array([[0, 1], [0, 1.1], [5, 5], [0, 1]], dtype=np.float32)
    >>> [near.rows.tolist() for near in near_each_other(rows, np.array([0, 0, 0, 1]), 0.2, "l2")]
    [[0, 1]]
    """
    if metric == "cosine":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    found = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        roots, nearest = _components(vectors[rows], threshold, metric)
        order = np.argsort(roots, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(roots[order])) + 1)
        found += [Near(rows[part], nearest[part]) for part in parts if len(part) > 1]
    return found


def _components(
    vectors: NDArray[Any], threshold: float, metric: Metric
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each row one that stands for its group, and the distance to the nearest other row within reach."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(vectors)
    nearest = np.full(count, np.inf)
    edges = [np.stack([np.arange(count)] * 2)]

    def merged() -> NDArray[np.int64]:
        pairs = np.concatenate(edges, axis=1)
        graph = coo_array((np.ones(pairs.shape[1], dtype=bool), tuple(pairs)), shape=(count, count))
        numbers = connected_components(graph, directed=False)[1]
        roots: NDArray[np.int64] = np.unique(numbers, return_index=True)[1][numbers]
        return roots

    held = 0
    for of, others, distances in _pairs(vectors, threshold, metric):
        np.minimum.at(nearest, of, distances)
        np.minimum.at(nearest, others, distances)
        edges.append(np.stack([of, others]))
        held += len(of)
        if held > _MOST_PAIRS:
            edges, held = [np.stack([np.arange(count), merged()])], 0
    return merged(), nearest


def _pairs(
    vectors: NDArray[Any], threshold: float, metric: Metric
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """The pairs of different rows within the threshold, and how far they are apart; some at a time."""
    import faiss

    index: Any
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
