"""Selection via proxy: train on the samples that a small model, trained before, found hardest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.importance.method import ImportanceMethod, Planned
from rekindle.choose.importance.parameter_checks import check_one_of, checked_share
from rekindle.choose.importance.systematic_sampling import lowest, share_of
from rekindle.choose.scores import Scores
from rekindle.core.atomic_file import atomic_write
from rekindle.errors import DataError, DataNotFoundError

# Scores hardly compress, except for forgetting, most of which may be 0.
_MAX_RATIO, _ALWAYS_ALLOWED = 100, 64 << 20
CRITERIA = ("least_confidence", "entropy", "forgetting")


@dataclass
class SelectionViaProxy(ImportanceMethod):
    """Trains on the share of the samples that a proxy found hardest: the same ones in every epoch.

    Coleman et al.: "Selection via Proxy: Efficient Data Selection for Deep Learning", ICLR'20.
    `rk.train_proxy` trains a small model, scores all samples by it and writes the scores to a file, to be
    used again with any share and any model.

    Args:
        file: The file that `rk.train_proxy` wrote.
        keep: The share of the samples to train on.
        criterion: "least_confidence" (1 − the largest probability), "entropy" (of the probabilities), or
            "forgetting" (how often a sample was right and then wrong while the proxy trained).

    Weakness: training the proxy takes time that has to be recovered; the samples left out are never seen, so
    the class balance shifts, and with less than about half of them accuracy falls.

    """

    reads = frozenset()
    file: str
    keep: float = 0.5
    criterion: str = "least_confidence"
    needs_feedback = False
    _hardness: NDArray[np.float32] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.file = os.fspath(self.file)
        self.keep = checked_share("keep", self.keep)
        check_one_of("criterion", self.criterion, CRITERIA)
        self._hardness = read_hardness(self.file, self.criterion)

    def plan(self, epoch: int, scores: Scores) -> Planned:
        """The hardest samples."""
        if len(self._hardness) != len(scores):
            raise DataError(
                f"{self.file} has scores of {len(self._hardness)} samples, the dataset has {len(scores)}. "
                "Train the proxy on this dataset."
            )
        count = max(1, share_of(len(scores), self.keep))
        return lowest(-self._hardness, count, lambda ids: scores.uniforms(0, ids=ids)), None


def write_hardness(file: str | Path, scores: Mapping[str, NDArray[np.generic]]) -> None:
    """Write a proxy's scores, all criteria of all samples, to a file in NumPy's format."""
    with atomic_write(file) as out:
        least_confidence, entropy, forgetting = (scores[name].astype(np.float32) for name in CRITERIA)
        np.savez_compressed(out, least_confidence=least_confidence, entropy=entropy, forgetting=forgetting)


def _check_size(file: BinaryIO, criterion: str) -> None:
    """Raise ValueError if an array would take far more memory than real scores in a file of this size do."""
    needed, size = ZipFile(file).getinfo(f"{criterion}.npy").file_size, os.fstat(file.fileno()).st_size
    if needed > _ALWAYS_ALLOWED + _MAX_RATIO * size:
        raise ValueError(f"{criterion} takes {needed:,} bytes, the file has {size:,}: made to exhaust memory")


def read_hardness(file: str, criterion: str) -> NDArray[np.float32]:
    """One criterion of all samples; DataError if the file is not one that `write_hardness` wrote."""
    try:
        with open(file, "rb") as opened:
            _check_size(opened, criterion)
            with np.load(opened, allow_pickle=False) as found:
                hardness: NDArray[np.float32] = found[criterion]
    except FileNotFoundError as error:
        raise DataNotFoundError(f"there is no {file!r}. Write one with rekindle.train_proxy.") from error
    except Exception as error:  # NumPy, zip and zlib have many ways to say that a file is corrupt.
        raise DataError(
            f"{file} is not a file of proxy scores ({error}). Write one with rekindle.train_proxy."
        ) from error
    if hardness.dtype != np.float32 or hardness.ndim != 1 or not np.isfinite(hardness).all():
        raise DataError(f"{file}: {criterion} must be one finite number per sample; was the file edited?")
    return hardness
