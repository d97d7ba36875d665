"""What need not be done again: refurbishing and echoes, and the store of values that were made before."""

from rekindle.reuse.cache.codecs import Jpeg
from rekindle.reuse.cache.stats import StoreStats
from rekindle.reuse.cache.store import Store
from rekindle.reuse.diversity import Diversity, diversity
from rekindle.reuse.settings import Echo, Refurbish
from rekindle.reuse.worker_view import WorkerView

__all__ = ["Diversity", "Echo", "Jpeg", "Refurbish", "Store", "StoreStats", "WorkerView", "diversity"]
