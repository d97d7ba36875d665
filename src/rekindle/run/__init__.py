"""Who does it, and what if they die?"""

from rekindle.run.bad_samples import BadSample, BadSamples, OnError
from rekindle.run.runner import (
    Executor,
    IterableRunner,
    MapRunner,
    Runner,
    Work,
    choose_executor,
    start_iterable,
    start_map,
)

__all__ = [
    "BadSample",
    "BadSamples",
    "Executor",
    "IterableRunner",
    "MapRunner",
    "OnError",
    "Runner",
    "Work",
    "choose_executor",
    "start_iterable",
    "start_map",
]
