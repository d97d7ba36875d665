"""Ray Train re-creates a loader from torch's arguments, and reads a batch ahead: this has ours survive that.

`ray.train.torch.prepare_data_loader` copies some of a loader's arguments to a new torch loader with a
`DistributedSampler`, and wraps that in one that copies batches to the device, one ahead of the training loop.
A loader of ours would lose what torch's does not have: `final_transform`, `reuse`, `importance` and so on.
Here it is made again with these and the sampler; one with `shard=` stays as it is. It copies to the device
itself, so that `loader.batch`, `feedback` and states are about the batch that the training loop has.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data import BatchSampler

from rekindle.choose import OrderKind

if TYPE_CHECKING:
    from rekindle.loader.dataloader import DataLoader

_MODULES = ("ray.train.torch.train_loop_utils", "ray.train.v2.torch.train_loop_utils")
_PATCHED = "_rekindle_keeps_loaders"
_TORCHS = (
    "dataset", "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout",
    "worker_init_fn", "multiprocessing_context", "generator", "persistent_workers", "pin_memory_device",
    "in_order",
)  # fmt: skip
_OfRay: TypeAlias = Any  # Ray Train's modules, loaders and their arguments, by names that are not public


def install() -> None:
    """Teach Ray Train to keep our loaders; does nothing the second time."""
    for name in _MODULES:
        module: _OfRay = sys.modules.get(name)
        is_known = hasattr(module, "DataLoader") and hasattr(module, "_WrappedDataLoader")
        if is_known and not hasattr(module, _PATCHED):
            setattr(module, _PATCHED, True)
            _patch(module)


def _patch(module: _OfRay) -> None:
    make, wrap = module.DataLoader, module._WrappedDataLoader

    def made(*args: _OfRay, **kwargs: _OfRay) -> _OfRay:
        """What Ray gets for a new torch loader with the arguments of its local variable `loader`."""
        given: _OfRay = sys._getframe(1).f_locals.get("loader")
        if not _is_ours(given):
            return make(*args, **kwargs)
        if given._ordering.shard is not None:
            return given
        return _made_again(given, sampler=kwargs["sampler"])

    def wrapped(loader: _OfRay, device: torch.device, auto_transfer: bool) -> _OfRay:
        """What Ray gets for a loader whose batches are to go to a device."""
        if not _is_ours(loader):
            return wrap(loader, device, auto_transfer)
        stays = device.type == "cpu" or loader.device is not None
        return loader if stays else _made_again(loader, device=device)

    module.DataLoader, module._WrappedDataLoader = made, wrapped


def _is_ours(loader: object) -> bool:
    from rekindle.loader.dataloader import DataLoader

    return isinstance(loader, DataLoader)


def _made_again(loader: DataLoader[object], **changed: object) -> DataLoader[object]:
    """A loader with the same arguments but for these."""
    given: dict[str, _OfRay] = {name: getattr(loader, name) for name in _TORCHS} | loader.rekindle
    given["prefetch_factor"] = loader._given_prefetch
    if "sampler" not in changed:
        given |= _order_of(loader)
    return type(loader)(**given | changed)


def _order_of(loader: DataLoader[object]) -> dict[str, _OfRay]:
    """The arguments that a loader has its order from."""
    if loader._ordering.given is not OrderKind.SAMPLER:
        return {"shuffle": True} if loader._ordering.given is OrderKind.SHUFFLED else {}
    if loader.batch_sampler is None or (type(loader.batch_sampler) is BatchSampler and loader.batch_size):
        return {"sampler": loader.sampler}
    return {"batch_sampler": loader.batch_sampler, "batch_size": 1, "drop_last": False}
