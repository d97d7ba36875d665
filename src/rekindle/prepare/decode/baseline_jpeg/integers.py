"""Integers of a given width, as numba compiles them: for a type checker, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import numpy as np

U8: Final = cast("Callable[[int], int]", np.uint8)
I8: Final = cast("Callable[[int], int]", np.int8)
I16: Final = cast("Callable[[int], int]", np.int16)
I32: Final = cast("Callable[[int], int]", np.int32)
U32: Final = cast("Callable[[int], int]", np.uint32)
I64: Final = cast("Callable[[int], int]", np.int64)
U64: Final = cast("Callable[[int], int]", np.uint64)
