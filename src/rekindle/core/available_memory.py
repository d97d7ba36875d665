"""How much memory this process may still use, container limits included."""

from __future__ import annotations

import resource
from pathlib import Path

from rekindle.core.interrupts import is_interrupt


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without swapping or being killed; None where the system does not say."""
    bounds = [_machine(root / "proc/meminfo"), *_containers(root), _address_space(root / "proc/self/statm")]
    known = [bound for bound in bounds if bound is not None]
    return max(0, min(known)) if known else None


def _machine(meminfo: Path) -> int | None:
    kilobytes = _field(meminfo, "MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _address_space(statm: Path) -> int | None:
    """What is left of the addresses that this process may use (`ulimit -v`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    pages = [int(pages) for line in _lines(statm) for pages in line.split()[:1] if pages.isdigit()]
    if limit == resource.RLIM_INFINITY or not pages:
        return None
    return limit - pages[0] * resource.getpagesize()


def _containers(root: Path) -> list[int | None]:
    """What each control group that this process is in leaves of its limit, for both versions of them."""
    left = []
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup") or ["0::/", "1:memory:/"]:
        _, controllers, own = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            names, start = ("memory.max", "memory.current", "inactive_file"), top
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            start = top / "memory"
        else:
            continue
        parts = Path(own.lstrip("/")).parts
        folders = [start.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
        left += [_left(folder, *names) for folder in folders]
    return left


def _left(folder: Path, limit: str, used: str, droppable: str) -> int | None:
    """The limit less what is used; files that the system would drop to make room do not count as used."""
    try:
        most, now = int((folder / limit).read_text()), int((folder / used).read_text())
    except (FileNotFoundError, ValueError):  # No such group, or its limit is the word "max".
        return None
    except OSError as error:
        if is_interrupt(error):
            raise
        return None
    return most - now + (_field(folder / "memory.stat", droppable) or 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError as error:  # Such a file is not on every system.
        if is_interrupt(error):
            raise
        return []


def _field(path: Path, name: str) -> int | None:
    """A number of a file whose lines are a name and a number."""
    for line in _lines(path):
        if line.startswith(name):
            found, number, *_ = [*line.split(), "", ""]
            if found == name and number.isdigit():
                return int(number)
    return None
