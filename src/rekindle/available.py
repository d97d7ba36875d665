"""How much memory this process may still use, container limits included."""

from __future__ import annotations

from pathlib import Path

_CGROUP_2 = ("memory.max", "memory.current")
_CGROUP_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be had without swapping or being killed; None where the system does not say."""
    bounds = [_machine(root / "proc/meminfo"), *_containers(root)]
    known = [bound for bound in bounds if bound is not None]
    return max(0, min(known)) if known else None


def _machine(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _containers(root: Path) -> list[int | None]:
    """What each control group above this process leaves of its limit."""
    top = root / "sys/fs/cgroup"
    folders = [top]
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2]
    except (OSError, IndexError):
        own = ""
    for name in Path(own.lstrip("/")).parts:
        folders.append(folders[-1] / name)
    left = [_left(folder / _CGROUP_2[0], folder / _CGROUP_2[1]) for folder in folders]
    return [*left, _left(top / _CGROUP_1[0], top / _CGROUP_1[1])]


def _left(limit: Path, used: Path) -> int | None:
    try:
        return int(limit.read_text()) - int(used.read_text())
    except (OSError, ValueError):  # No such group, or its limit is the word "max".
        return None
