"""How many cores this process may use, container limits included."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores(root: Path = Path("/")) -> int:
    """Cores that this process may run on, and no more than its control groups give it time for."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas(root)]))


def _quotas(root: Path) -> list[int]:
    """The cores' worth of time that each control group of this process may use, for both versions of them."""
    found = []
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines() or ["0::/", "1:cpu:/"]:
        _, controllers, own = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        start = top / "cpu" if controllers else top
        parts = Path(own.lstrip("/")).parts
        for folder in (start.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)):
            v1 = f"{_text(folder / 'cpu.cfs_quota_us').strip()} {_text(folder / 'cpu.cfs_period_us').strip()}"
            quota, _, period = (v1 if controllers else _text(folder / "cpu.max").strip()).partition(" ")
            if quota.isdigit() and period.isdigit() and int(period) > 0:  # Not "max", nor −1.
                found.append(-(-int(quota) // int(period)))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
