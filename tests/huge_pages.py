"""Cheaper forks: what a process has in memory, in pages of 2 MB rather than of 4 KB.

A fork copies an entry for every page, and most tests start workers by forking a process that has imported
torch: hundreds of megabytes. With huge pages a loader with two workers takes half the CPU time.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path

HUGE = 2 << 20  # bytes
MADV_COLLAPSE = 25  # since Linux 6.1; the mmap module has no name for it


def use_huge_pages() -> None:
    """Ask the kernel for huge pages in place of this process's own; an older kernel says no."""
    library = ctypes.CDLL(None)
    madvise, trim = (getattr(library, name, None) for name in ("madvise", "malloc_trim"))
    if madvise is None:
        return
    if trim is not None:
        trim(0)  # What was freed is not copied either.
    for start, end in _own_memory():
        for address in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
            madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE), MADV_COLLAPSE)


def _own_memory() -> Iterator[tuple[int, int]]:
    """Where there is memory that is written to, of no file and of no other process."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        if access == "rw-p" and name in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
