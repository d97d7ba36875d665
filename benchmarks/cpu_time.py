"""The CPU time that a contender takes, whoever of its processes takes it."""

from __future__ import annotations

import resource

import psutil


def cpu_seconds() -> float:
    """Of this process and of all below it, those that have ended and those that live on."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    alive = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(usage.ru_utime + usage.ru_stime for usage in both) + sum(
        times.user + times.system + times.children_user + times.children_system for times in alive
    )
