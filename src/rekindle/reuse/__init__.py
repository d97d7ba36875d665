"""What need not be done again: the store of values that were made before."""

from rekindle.reuse.codecs import Jpeg
from rekindle.reuse.store import Store, StoreStats

__all__ = ["Jpeg", "Store", "StoreStats"]
