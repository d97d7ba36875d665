"""Progress bars on a terminal: of samples, and of the bytes of a file. Nothing is shown elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rekindle.core.printable import printable

if TYPE_CHECKING:  # To import rich takes longer than most of what this is used for.
    from rich.progress import ProgressColumn

_DELAY = 1.0  # seconds before a bar of bytes is shown: most files are done by then


@contextmanager
def progress_bar(title: str, total: int, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar of samples; call it with how many samples and bytes were done since the last call."""
    if quiet or not sys.stderr.isatty():
        yield lambda samples, nbytes: None
        return
    from rich.progress import MofNCompleteColumn, TextColumn

    samples_done, bytes_done, started = 0, 0, time.monotonic()
    columns = MofNCompleteColumn(), TextColumn("{task.fields[rate]}")
    with _bar(title, total, columns, delay=0.0) as show:

        def advance(samples: int, nbytes: int) -> None:
            nonlocal samples_done, bytes_done
            samples_done, bytes_done = samples_done + samples, bytes_done + nbytes
            rate = bytes_done / max(time.monotonic() - started, 1e-3)
            show(samples_done, f"{format_bytes(int(rate))}/s" if bytes_done else "")

        yield advance


@contextmanager
def byte_progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of bytes, shown once a second has passed; call it with how many are done in all."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import DownloadColumn

    with _bar(title, total, (DownloadColumn(),), delay=_DELAY) as show:
        yield lambda done: show(done, "")


@contextmanager
def _bar(
    title: str, total: int, columns: tuple[ProgressColumn, ...], delay: float
) -> Iterator[Callable[[int, str], None]]:
    """A bar with these columns between itself and the time left; called with what is done, and the rate."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    # Titles have names of files in them, which are no markup.
    name, left = TextColumn("{task.description}", markup=False), TimeRemainingColumn()
    bar = Progress(name, BarColumn(), *columns, left, console=Console(stderr=True), transient=True)
    task = bar.add_task(printable(title), total=total, rate="")
    is_shown = False

    def show(done: int, rate: str) -> None:
        nonlocal is_shown
        if not is_shown and time.monotonic() - started >= delay:
            bar.start()
            is_shown = True
        if is_shown:
            bar.update(task, completed=done, rate=rate)

    try:
        if not delay:
            show(0, "")
        yield show
    finally:
        if is_shown:
            bar.stop()


def format_bytes(count: int) -> str:
    """A number of bytes for people to read, in powers of 1,000.

    >>> format_bytes(999), format_bytes(1_234_567)
    ('999 B', '1.23 MB')
    """
    size, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    if units[0] == "B":
        return f"{count} B"
    return f"{size:.3g} {units[0]}" if size < 100 else f"{size:.0f} {units[0]}"
