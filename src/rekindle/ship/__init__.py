"""How does a batch reach the model?"""

from rekindle.ship.batch_info import BatchInfo, yielded
from rekindle.ship.copy_stream import copy_stream_to
from rekindle.ship.device_prefetch import OneAhead, ToDevice
from rekindle.ship.pin import pinner
from rekindle.ship.unpack import nbytes, unpack

__all__ = [
    "BatchInfo",
    "OneAhead",
    "ToDevice",
    "copy_stream_to",
    "nbytes",
    "pinner",
    "unpack",
    "yielded",
]
