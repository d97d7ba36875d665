"""Selection via proxy: a small model, trained before, says which samples the large one needs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.draws import lowest, share_of
from rekindle.choose.importance.method import Planned, check_one_of, check_share
from rekindle.choose.scores import Scores
from rekindle.errors import DataError

CRITERIA = ("least_confidence", "entropy", "forgetting")


@dataclass
class SelectionViaProxy:
    """Trains on the share of the samples that a proxy found hardest: the same ones in every epoch.

    Coleman et al.: "Selection via Proxy: Efficient Data Selection for Deep Learning", ICLR'20.
    `rk.train_proxy` trains a small model, scores all samples by it and writes the scores to a file, to be
    used again with any share and any model.

    Args:
        file: What `rk.train_proxy` wrote.
        keep: The share of the samples to train on.
        criterion: "least_confidence" (1 − the largest probability), "entropy" (of the probabilities), or
            "forgetting" (how often a sample was right and then wrong while the proxy trained).

    Weakness: the proxy's training has to be earned back; what it leaves out is never seen, so the class
    balance shifts, and below about half the accuracy falls.

    """

    file: str
    keep: float = 0.5
    criterion: str = "least_confidence"
    needs_feedback = False
    _hardness: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.file = os.fspath(self.file)
        check_share("keep", self.keep)
        check_one_of("criterion", self.criterion, CRITERIA)
        self._hardness = read_hardness(self.file, self.criterion)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The hardest samples."""
        if len(self._hardness) != len(scores):
            raise DataError(
                f"{self.file} has scores of {len(self._hardness)} samples, the data set has {len(scores)}. "
                "Train the proxy on this data set."
            )
        count = max(1, share_of(len(scores), self.keep))
        return np.sort(lowest(-self._hardness, count, scores.uniforms(0))), None


def write_hardness(file: str | Path, scores: dict[str, NDArray[Any]]) -> None:
    """Write a proxy's scores, all criteria of all samples, to a file that NumPy can read."""
    with open(file, "wb") as out:
        arrays: dict[str, Any] = {name: scores[name].astype(np.float32) for name in CRITERIA}
        np.savez_compressed(out, **arrays)


def read_hardness(file: str, criterion: str) -> NDArray[np.float32]:
    """One criterion of all samples; DataError if the file is not one that `write_hardness` wrote."""
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as found:
            hardness: NDArray[np.float32] = found[criterion]
    except (OSError, ValueError, LookupError, EOFError, AttributeError, TypeError, BadZipFile) as error:
        raise DataError(
            f"{file} is no file of a proxy's scores ({error}). Make one with rekindle.train_proxy."
        ) from error
    if hardness.dtype != np.float32 or hardness.ndim != 1 or not np.isfinite(hardness).all():
        raise DataError(f"{file}: {criterion} must be one finite number a sample; was the file edited?")
    return hardness
