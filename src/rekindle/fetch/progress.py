"""A progress bar for what may take long: on a terminal, and only once a second has passed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PATIENCE = 1.0  # seconds


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Within it, calls with how many bytes are done move the bar."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=total)
    shown = False

    def done(amount: int) -> None:
        nonlocal shown
        if not shown and time.monotonic() - started > _PATIENCE:
            bar.start()
            shown = True
        if shown:
            bar.update(task, completed=amount)

    try:
        yield done
    finally:
        if shown:
            bar.stop()
