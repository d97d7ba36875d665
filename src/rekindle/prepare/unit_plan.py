"""The plan of a unit: an array of integers, a row a sample, that compiled code reads and fills."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Plan: TypeAlias = NDArray[np.int64]
# Writes what a plan says of some pixels: given the memory that images lie in, one after the other or among
# other things, and its number in the plan, of which rows with another number are left alone.
WriteImages: TypeAlias = Callable[[NDArray[np.uint8], int], None]


class Column(IntEnum):
    """What the columns of a plan hold."""

    SOURCE = 0  # which memory a sample's pixels are in; −1: none is known
    START = 1  # where they start there
    HEIGHT = 2  # of the image
    WIDTH = 3
    TOP = 4  # of the box or window that is wanted of it
    LEFT = 5
    BOX_HEIGHT = 6
    BOX_WIDTH = 7
    MIRRORED = 8
    UPSIDE_DOWN = 9
    ROW = 10  # of the result, that it is written to


COLUMNS: Final = len(Column)
