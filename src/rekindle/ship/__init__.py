"""How does a batch reach the model?"""

from rekindle.ship.info import BatchInfo, fresh_of, ids_of
from rekindle.ship.lanes import lane_to
from rekindle.ship.pin import pinner
from rekindle.ship.to_device import OneAhead, ToDevice
from rekindle.ship.unpack import nbytes, unpack

__all__ = [
    "BatchInfo",
    "OneAhead",
    "ToDevice",
    "fresh_of",
    "ids_of",
    "lane_to",
    "nbytes",
    "pinner",
    "unpack",
]
