"""What the ranks of a run must have in common that are about to load the same epochs."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
from torch.utils.data import Subset

from rekindle.choose.agreement import Fact
from rekindle.choose.importance.session import ImportanceSession
from rekindle.choose.position import Position
from rekindle.loader import checkpoint, shard_state
from rekindle.loader.settings import LoaderSettings
from rekindle.loader.sharding import LoaderOrder
from rekindle.prepare.native import as_native
from rekindle.prepare.native_subset import NativeSubset

# What a state calls these, as a RankError tells it.
_IN_WORDS = {
    "world": "the number of ranks",
    "begun_world": "the number of ranks that began the epoch",
    "begun_batch_size": "the batch size with which the epoch began",
    "offset": "the number of samples consumed before",
}
_WITH_REPR = ("rekindle.", "torchvision.", "timm.")  # whose steps show themselves alike in every process


def facts_of(
    settings: LoaderSettings,
    position: Position,
    order: LoaderOrder,
    steps: int | None,
    importance: ImportanceSession | None,
) -> dict[str, Fact]:
    """What is compared: where they go on, and with what."""
    facts: dict[str, Fact] = {**checkpoint.identity(settings)}
    facts.pop(checkpoint.STREAM_PART, None)
    if not order.kind.is_planned:  # Each rank of a stream is where it is.
        return facts
    chosen = {} if importance is None else {**_parameters(importance.identity), **importance.facts()}
    at = {"steps": steps, "epoch": position.epoch, "step": position.step}
    if order.seed is not None:
        facts["the sampler's seed"] = order.seed
    if order.shard is not None:
        facts["drop_last of the sampler"] = order.shard.drop_last
    begun = {
        _IN_WORDS.get(name, name): fact for name, fact in shard_state.save(order.layout, position).items()
    }
    return {**facts, **_facts_of_dataset(settings.dataset), **at, **begun, **chosen}


def _parameters(identity: Mapping[str, object]) -> dict[str, Fact]:
    return {f"importance's {name}": str(value) for name, value in identity.items() if name != "method"}


def _facts_of_dataset(dataset: object) -> dict[str, Fact]:
    """What tells datasets of equal size apart, and is the same for equal ones in every process.

    That is which samples of a larger one a `Subset` has, and the steps of a native dataset.
    """
    facts: dict[str, Fact] = {}
    native = as_native(dataset)
    if native is not None:
        facts["transform"] = ", ".join(map(_shown, _steps(native.transform)))
    if isinstance(dataset, Subset | NativeSubset):
        try:
            indices = np.asarray(dataset.indices, dtype=np.int64)
        except (TypeError, ValueError, OverflowError):  # Of a subclass that keeps something else in it.
            return facts
        facts["the subset's indices (their checksum)"] = zlib.crc32(np.ascontiguousarray(indices).data)
    return facts


def _steps(transform: object) -> list[object]:
    inner = getattr(transform, "transforms", transform)
    return [*inner] if isinstance(inner, list | tuple) else [inner]


def _shown(step: object) -> str:
    kind = type(step)
    if kind.__module__.startswith(_WITH_REPR) and " at 0x" not in repr(step):
        return repr(step)
    return getattr(step, "__qualname__", kind.__qualname__)
