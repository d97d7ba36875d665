"""What need not be done again: refurbishing and echoes, and the store of values that were made before."""

from rekindle.reuse.codecs import Jpeg
from rekindle.reuse.diversity import Diversity, diversity
from rekindle.reuse.reused import Reused
from rekindle.reuse.settings import Echo, Refurbish
from rekindle.reuse.store import Store, StoreStats

__all__ = ["Diversity", "Echo", "Jpeg", "Refurbish", "Reused", "Store", "StoreStats", "diversity"]
