"""Numbers as callers give them: Python's, NumPy's, or whatever else is one.

They become Python's: a checkpoint holds those, and `np.int64(3)` is written as something else than 3.
"""

from __future__ import annotations

import numbers
import operator


def integer_of(value: object) -> int | None:
    """The integer that a value stands for; None if it is none. True and False are none.

    >>> import numpy as np
    >>> integer_of(np.int64(3)), integer_of(3.0), integer_of(True)
    (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        return None


def number_of(value: object) -> int | float | None:
    """The number that a value stands for; None if it is none. True and False are none.

    >>> import numpy as np
    >>> number_of(np.float32(0.5)), number_of(3), number_of("3")
    (0.5, 3, None)
    """
    integer = integer_of(value)
    if integer is not None or isinstance(value, bool):
        return integer
    return float(value) if isinstance(value, numbers.Real) else None
