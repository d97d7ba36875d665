"""What the fork server imports before it forks: torch, once, instead of in every worker."""

from __future__ import annotations

from multiprocessing import forkserver

_WORKER = "rekindle.run.worker_process"


def preload_workers() -> None:
    """Have the fork server import what every worker needs, unless it runs already or was told what to import.

    A worker then starts in milliseconds, and shares with the others what the imports take of memory.
    """
    server = getattr(forkserver, "_forkserver", None)
    is_running = getattr(server, "_forkserver_alive_fd", 0) is not None
    if not is_running and getattr(server, "_preload_modules", None) == ["__main__"]:
        forkserver.set_forkserver_preload(["__main__", _WORKER])
