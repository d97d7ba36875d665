"""One process with HDF5's library for all tests of a file: starting one takes longer than most of them do."""

from collections.abc import Iterator
from typing import Any

import pytest

from rekindle.fetch.packed.hdf5 import index
from rekindle.fetch.packed.hdf5.inspector import Inspector


class _Kept:
    """An inspector that is not ended by those who are done with it."""

    def __init__(self) -> None:
        self.inspector = Inspector()

    def inspect(self, *arguments: Any) -> Any:
        return self.inspector.inspect(*arguments)

    def close(self) -> None:
        """Nothing: the next test needs it."""


@pytest.fixture(scope="module", autouse=True)
def one_inspector() -> Iterator[None]:
    """To be imported by the files whose tests are about what is in HDF5 files, not about that process."""
    kept = _Kept()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "Inspector", lambda: kept)
        yield
    kept.inspector.close()
