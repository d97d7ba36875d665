"""How does a batch reach the model?"""

from rekindle.ship.info import BatchInfo
from rekindle.ship.pin import pinner
from rekindle.ship.unpack import nbytes, unpack

__all__ = ["BatchInfo", "nbytes", "pinner", "unpack"]
