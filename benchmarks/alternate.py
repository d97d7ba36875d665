"""Runs contenders alternately, so that whatever slows the machine slows them alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import TypeVar

from rich.console import Console

Measured = TypeVar("Measured")


def alternate(contenders: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """What each contender's function returned in each round, after one round that does not count.

    Every other round runs in reverse order, so that none always follows the same contender.
    """
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    order = list(contenders)
    console = Console(stderr=True)
    with console.status("") as status:  # shows itself on a terminal only
        for number in range(rounds + 1):
            for name in order:
                turn = f"round {number} of {rounds}" if number else "warming up"
                status.update(f"{name}: {turn}")
                gc.collect()  # so that no contender collects another's garbage
                value = contenders[name]()
                if number:
                    found[name].append(value)
            order.reverse()
    return found
