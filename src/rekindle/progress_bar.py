"""How far a long piece of work has got, on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(title: str, total: int, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; called with how many samples and bytes were done since the last call."""
    if quiet or not sys.stderr.isatty():
        yield lambda samples, nbytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    started, done = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, rate="")

        def told(samples: int, nbytes: int) -> None:
            nonlocal done
            done += nbytes
            rate = done / max(time.monotonic() - started, 1e-3)
            bar.update(task, advance=samples, rate=f"{in_words(int(rate))}/s" if done else "")

        yield told


def in_words(count: int) -> str:
    """A number of bytes for people to read.

    >>> in_words(999), in_words(1_234_567)
    ('999 B', '1.23 MB')
    """
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    if units[0] == "B":
        return f"{count} B"
    return f"{size:.3g} {units[0]}" if size < 100 else f"{size:.0f} {units[0]}"
