"""An iterable dataset with a final transform: a sample for each of its own, so its state is the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from rekindle.core.samples import Sample


class FinishedStream(IterableDataset[Sample]):
    """The samples of an iterable dataset, with `final_transform` applied to each."""

    def __init__(self, source: Any, final_transform: Callable[[Sample], Sample]) -> None:
        self.source, self._final_transform = source, final_transform

    def __iter__(self) -> Iterator[Sample]:
        return FinishedSamples(iter(self.source), self._final_transform)

    def state_dict(self) -> Any:
        """Where the dataset stands; only if it can say so."""
        return self.source.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Let the dataset go on from there."""
        self.source.load_state_dict(state)


class FinishedSamples(Iterator[Sample]):
    """One pass over a `FinishedStream`."""

    def __init__(self, source: Any, final_transform: Callable[[Sample], Sample]) -> None:
        self.source, self._final_transform = source, final_transform

    def __next__(self) -> Sample:
        sample = next(self.source)
        try:
            return self._final_transform(sample)
        except StopIteration as error:  # which would end the epoch silently
            raise RuntimeError("final_transform raised StopIteration") from error

    def state_dict(self) -> Any:
        """Where the dataset's iterator stands; only if it can say so."""
        return self.source.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Let the dataset's iterator go on from there."""
        self.source.load_state_dict(state)
