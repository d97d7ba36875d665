"""Which samples a cache accepts: all, those that are flagged, or a share that is drawn by a seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.core import counter_rng
from rekindle.reuse.cache.shared_arrays import Field, SharedMemory

MAX_FLAGS = 1 << 22  # samples; beyond, a share of them is drawn
# Samples that are drawn together: as many as lie in a page of the index, so that it is filled or not touched.
_BLOCK = 64
_ALL, _FLAGGED, _DRAWN = range(3)
_RULE, _SEED, _THRESHOLD, _LEFT_OUT = range(4)  # indices into `admission`


def fields(size: int) -> list[Field]:
    """The shared arrays of the rule, for `size` samples."""
    return [("admission", np.int64, 8), ("unwanted", np.uint8, size if size <= MAX_FLAGS else 0)]


class AdmissionRule:
    """The rule of a store, the same for all its workers from the moment it is set."""

    def __init__(self, memory: SharedMemory) -> None:
        self._rule, self._unwanted = memory.arrays["admission"], memory.flags["unwanted"]

    def admits(self, index: int) -> bool:
        """Whether a sample is worth caching."""
        rule = self._rule[_RULE]
        if rule == _ALL:
            return True
        if rule == _FLAGGED:
            return not self._unwanted[index]
        drawn = counter_rng.split(self._rule[_SEED], index // _BLOCK)[0] >> np.uint64(1)
        return bool(drawn < self._rule[_THRESHOLD])

    @property
    def share(self) -> float:
        """Which part of the samples is accepted."""
        return 1 - float(self._rule[_LEFT_OUT]) / 2**53

    def _set_share(self, share: float) -> None:
        self._rule[_LEFT_OUT] = int((1 - share) * 2**53)

    def set(self, wanted: NDArray[np.bool_] | None) -> None:
        """Accept the samples whose flag is set; None for all."""
        if wanted is not None:
            self._unwanted[:] = ~wanted
        self._set_share(1.0 if wanted is None or not wanted.size else float(wanted.mean()))
        self._rule[_RULE] = _ALL if wanted is None else _FLAGGED

    def set_share(self, share: float, seed: int) -> None:
        """Accept this share of the samples, drawn by the seed."""
        self._rule[_SEED] = np.array(seed & (1 << 64) - 1, dtype=np.uint64).astype(np.int64)
        self._rule[_THRESHOLD] = min(int(share * 2**63), 2**63 - 1)
        self._set_share(share)
        self._rule[_RULE] = _DRAWN
