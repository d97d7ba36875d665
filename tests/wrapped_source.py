"""A source that is none of ours, around one of ours."""

from __future__ import annotations

from typing import Any


class WrappedSource:
    """Forwards everything to another source."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __len__(self) -> int:
        return len(self._source)
