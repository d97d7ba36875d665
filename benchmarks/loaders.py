"""The contenders: each a name and a function that makes a loader from torch's arguments.

A loader is imported when it is first made, so that one contender's process holds nothing of the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


def torch_loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    """The loader that comes with torch."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, **settings)


def rekindle_loader(dataset: Any, **settings: Any) -> DataLoader[Any]:
    """Rekindle's loader, with the seed given as a user would."""
    import rekindle as rk

    return rk.DataLoader(dataset, seed=0, **settings)


LOADERS: dict[str, Callable[..., DataLoader[Any]]] = {
    "torch": torch_loader,
    "rekindle": rekindle_loader,
}
