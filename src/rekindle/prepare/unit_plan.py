"""The plan of a unit: an array of integers, a row a sample, that compiled code reads and fills."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Plan: TypeAlias = NDArray[np.int64]

# Its columns. Which memory a sample's pixels are in (−1: none is known), and where they start there.
SOURCE: Final = 0
START: Final = 1
# The image's size; the box that is wanted of it; its flips.
HEIGHT: Final = 2
WIDTH: Final = 3
TOP: Final = 4
LEFT: Final = 5
BOX_HEIGHT: Final = 6
BOX_WIDTH: Final = 7
MIRRORED: Final = 8
UPSIDE_DOWN: Final = 9
# The row of the result that it is written to.
ROW: Final = 10
COLUMNS: Final = 11
