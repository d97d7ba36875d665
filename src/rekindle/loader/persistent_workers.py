"""What is in `loader._iterator` while workers persist: scripts set that to None to get new workers."""

from __future__ import annotations

from rekindle.loader.epochs import Epochs


class PersistentWorkers:
    """Stands where torch has the iterator of a loader whose workers persist.

    MMDetection and Lightning set `loader._iterator` to None, so that the next epoch has new workers with what
    was changed; some scripts call `_shutdown_workers()` first.
    """

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        epochs.forget_workers()

    def _shutdown_workers(self) -> None:
        self._epochs.close_idle()
