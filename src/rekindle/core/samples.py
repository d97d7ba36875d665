"""What passes through the loader without being looked into: it belongs to the user's code."""

from __future__ import annotations

from typing import Any, TypeAlias

# These really are anything. Everything else has a type.
Index: TypeAlias = Any  # what a sampler yields and a dataset is asked for; an int, if nobody says otherwise
Sample: TypeAlias = Any  # what a dataset gives for an index
Batch: TypeAlias = Any  # what a collate function makes of samples
