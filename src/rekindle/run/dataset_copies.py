"""The state of a map-style dataset that has one, as torchdata defines it: of each worker's copy.

A worker loads whole batches of such a dataset, in the order of their steps, each once: so its copy goes
through the same states in every run. What the copy's `state_dict` gives is sent along with a batch if it has
changed since the last one.
"""

from __future__ import annotations

import pickle
from typing import Any

from torch.utils.data import IterableDataset

from rekindle.core.interrupts import is_interrupt

_LARGEST = 1 << 20  # bytes: what may be sent along with every batch


def has_state(dataset: object) -> bool:
    """Whether a map-style dataset can save and load a state of its own."""
    return not isinstance(dataset, IterableDataset) and follows_protocol(dataset)


def follows_protocol(one: object) -> bool:
    """Whether an object has `state_dict` and `load_state_dict`."""
    try:
        return hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
    except Exception as error:  # A `__getattr__` of the user's: an object without these methods.
        if is_interrupt(error):
            raise
        return False


def taken(dataset: Any) -> bytes | str:
    """The state of a dataset, pickled, between our own processes; a string says why it cannot be had."""
    try:
        value = pickle.dumps(dataset.state_dict(), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        if is_interrupt(error):
            raise
        return f"It failed with {type(error).__name__}: {error}."
    if len(value) > _LARGEST:
        return f"It has {len(value):,} bytes, and up to {_LARGEST:,} are sent along with a batch."
    return value


class DatasetCopy:
    """A worker's copy of a dataset; without a state, or if nobody asks for it, `dataset` is None."""

    def __init__(self, dataset: Any | None) -> None:
        self._dataset = dataset
        self._sent: bytes | str = b""
        self._error: Exception | None = None

    def load(self, state: bytes) -> None:
        """Put the copy into a state; an exception of that is the next batch's."""
        self._sent = b""
        try:
            if self._dataset is not None:
                self._dataset.load_state_dict(pickle.loads(state))
        except Exception as error:
            self._error = error

    def check(self) -> None:
        """Raise what loading a state has raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def news(self) -> bytes | str | None:
        """The state now, if it was not sent before."""
        if self._dataset is None:
            return None
        state = taken(self._dataset)
        if state == self._sent:
            return None
        self._sent = state
        if isinstance(state, str):  # It will not get better, and is not asked for again.
            self._dataset = None
        return state
