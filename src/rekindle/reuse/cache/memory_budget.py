"""How much memory a cache may use."""

from __future__ import annotations

import os
import re
from typing import TypeAlias

from rekindle.core.available_memory import available_memory
from rekindle.core.given_numbers import integer_of
from rekindle.errors import ArgumentError

_AUTO_SHARE = 2  # "auto" takes one part of so many
_IF_UNKNOWN = 1 << 30
_UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}

Memory: TypeAlias = int | str  # bytes, a size such as "4GB", or "auto"


def checked_memory(memory: Memory) -> int | None:
    """The number of bytes that `memory=` stands for; None for "auto". ArgumentError if it means nothing.

    >>> checked_memory("1.5 GB"), checked_memory("2GiB"), checked_memory("auto")
    (1500000000, 2147483648, None)
    """
    if isinstance(memory, str):
        if memory == "auto":
            return None
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?\s*", memory.upper())
        if match is not None:
            return int(float(match[1]) * _UNITS[match[2] or ""])
    else:
        nbytes = integer_of(memory)
        if nbytes is not None and nbytes >= 0:
            return nbytes
    raise ArgumentError(
        f"memory={memory!r}: give a number of bytes, a size such as '4GB' or '512MiB', or 'auto'."
    )


def memory_budget(memory: Memory, *, whole_host: bool = False) -> int:
    """How many bytes of values a store may hold in memory; "auto" is a half, or this rank's share of that.

    >>> memory_budget(1) == os.sysconf("SC_PAGE_SIZE")
    True
    """
    nbytes = checked_memory(memory)
    if nbytes is None:
        ranks, available = 1 if whole_host else _local_ranks(), available_memory()
        nbytes = (_IF_UNKNOWN if available is None else available // _AUTO_SHARE) // ranks
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-nbytes // page) * page


def _local_ranks() -> int:
    """How many ranks of this training run on this machine, as torchrun sets it in the environment."""
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(given)) if given.isdecimal() else 1
