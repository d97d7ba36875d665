"""What stands in the place of a sample that could not be made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """What stands in a sample's place if making it raised an exception."""

    error: Exception
