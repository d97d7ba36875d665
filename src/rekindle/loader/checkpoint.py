"""Where a loader stands, as plain data that a checkpoint can hold."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch

from rekindle.choose import OrderKind
from rekindle.choose.draws import checked_draws
from rekindle.choose.position import Position
from rekindle.choose.sampler_generators import checked_generators
from rekindle.choose.sampler_memory import checked_parts
from rekindle.choose.sampler_state import SamplerState
from rekindle.choose.shard import Shard
from rekindle.core.state_fields import MOST, MOST_EPOCHS, MOST_RANKS, StateFields, shown
from rekindle.errors import StateError
from rekindle.loader import shard_state, stream_state
from rekindle.loader.settings import LoaderSettings
from rekindle.loader.sharding import LoaderOrder
from rekindle.run import BadSample
from rekindle.run.hugging_face import is_hugging_face

_VERSION = 2  # 1 had other shuffled orders: its position within an epoch stands for other samples here
_MOST_SEED = 2**63 - 1
_ORDER_SEED = "order_seed"
STREAM_PART = "stream_of"  # which rank's part of a stream; not there without shard=

State: TypeAlias = dict[str, Any]  # numbers, strings and tensors, in dictionaries and lists
_MOST_AHEAD = 2**20  # batches, which are kept while they are drawn again
_KEPT = ("kept_first", "kept")
_ARGUMENTS = {"dataset_size": "dataset", "order": "shuffle= or sampler="}  # that a field follows from
Identity: TypeAlias = dict[str, int | str | None]


def identity(settings: LoaderSettings) -> Identity:
    """What a state must agree with to be loaded into a loader with these settings."""
    found: Identity = {
        "seed": settings.seed,
        "dataset_size": settings.size,
        "batch_size": settings.batch_size,
        "drop_last": settings.drop_last,
        "order": settings.order.value,
        "native": settings.reuse.is_native,  # Other decoders and steps draw other numbers.
        **settings.reuse.identity(),
        "importance": "" if settings.importance is None else settings.importance.name,
    }
    if settings.order is OrderKind.ITERABLE:  # Each worker has its own part of the dataset.
        # A Hugging Face stream shuffles otherwise without workers than with one.
        least = 0 if is_hugging_face(settings.dataset) else 1
        found["num_workers"] = max(least, settings.num_workers)
        if settings.shard is not None:
            found[STREAM_PART] = stream_part(settings.shard)
    return found


def stream_part(shard: Shard) -> str:
    """Which part of a stream a rank has, in a state."""
    return f"rank {shard.rank} of {shard.world}"


def save(
    identity: Identity, position: Position, bad: list[BadSample], order: LoaderOrder, *, in_order: bool
) -> State:
    """The state of a loader that stands at a position in such an order."""
    sampler, iterable = position.sampler_to_resume(), position.iterable
    shared: State = {}
    shard = order.shard
    if shard is not None or position.start is not None:
        rank = None if in_order or shard is None or shard.world == 1 else shard.rank
        shared[shard_state.FIELD] = shard_state.save(order.layout, position, rank)
    if order.kind.is_planned:
        shared[_ORDER_SEED] = identity["seed"] if order.seed is None else order.seed
    return shared | {
        "version": _VERSION,
        **identity,
        "epoch": position.epoch,
        "step": position.step,
        "ahead": torch.tensor(sorted(position.ahead), dtype=torch.int64),
        "sampler": None if sampler is None else _copied(sampler),
        "iterable": None if iterable is None else stream_state.save(iterable),
        "bad_epochs": torch.tensor([one.epoch for one in bad], dtype=torch.int64),
        "bad_ids": torch.tensor([one.id for one in bad], dtype=torch.int64),
        "bad_reasons": [one.reason for one in bad],
    }


def _copied(sampler: SamplerState) -> State:
    fields = vars(sampler)
    kept = {name: fields[name] for name in _KEPT}  # of which nobody changes anything
    return copy.deepcopy({name: fields[name] for name in fields if name not in _KEPT}) | kept


def check_version(state: object, path: str = "") -> StateFields:
    """The fields of a state; StateError if it is none that `save` made."""
    fields = StateFields(state, path)
    version = state.get("version") if isinstance(state, dict) else None
    if isinstance(state, dict) and version is None:
        raise StateError(
            "version: expected what state_dict() of a loader gives, but got a dictionary with "
            f"{'the keys ' + ', '.join(map(shown, islice(state, 5))) if state else 'no keys'}. "
            "If it is a whole checkpoint, give the loader's part of it."
        )
    if type(version) is not int or version != _VERSION:
        raise StateError(
            f"version: expected a state of version {_VERSION}, as state_dict() gives, "
            f"but got {shown(version)}. A state of an earlier release belongs to other shuffled orders: "
            "go on with the epoch after it, by set_epoch()."
        )
    return fields


def seed_of(state: object) -> int:
    """The seed of a saved state, for a loader that was not given one."""
    return check_version(state).integer("seed", most=_MOST_SEED)


def split_of(state: object, last: int) -> int | None:
    """Where a saved state has the dataset split, from 0 to `last`; None if that was not decided yet."""
    fields = check_version(state)
    return None if fields.get("split") is None else fields.integer("split", most=last)


def check_identity(fields: StateFields, identity: Identity, may_differ: Collection[str] = ()) -> None:
    """StateError, naming the field, if a state is that of a loader which differs in more than these."""
    for name, here in identity.items():
        if name in may_differ or name == STREAM_PART:
            continue
        saved, argument = fields.get(name), _ARGUMENTS.get(name, name)
        if type(saved) is not type(here) or saved != here:
            raise StateError(
                f"{name}: the state was saved with {name}={shown(saved)}, this loader has {here!r}. "
                f"Make the loader with the same {argument}, or start from scratch without load_state_dict."
            )
    part = fields.get(STREAM_PART) if STREAM_PART in fields.names() else None
    part_here = identity.get(STREAM_PART)
    if type(part) is not type(part_here) or part != part_here:
        raise StateError(
            f"{STREAM_PART}: the state is that of {'a whole stream' if part is None else shown(part)}, this "
            f"loader reads {'all of it' if part_here is None else part_here}. Other numbers of ranks or "
            "workers can go on with a stream of Hugging Face's datasets that is loaded as it is, by "
            "processes; this one goes on with as many as before."
        )


def check_order_seed(fields: StateFields, position: Position, order: LoaderOrder, seed: int) -> None:
    """StateError if an epoch that has begun would go on in an order that is drawn from another seed.

    `seed` is the loader's; a sampler that deals the dataset to ranks has its own.
    """
    saved, here = fields.get(_ORDER_SEED), seed if order.seed is None else order.seed
    if type(saved) is not int:
        fields.refuse(_ORDER_SEED, f"expected an integer, but got {shown(saved)}")
    if saved != here and (position.step or position.start):
        whose = "of the loader" if order.seed is None else "of the sampler"
        raise StateError(
            f"{_ORDER_SEED}: the state was saved within an epoch whose order is drawn from the seed "
            f"{shown(saved)}, but here it is drawn from {here}, that {whose}: samples would come twice, and "
            "others not at all. Give the sampler (or, with shard=, the loader) the seed that it had, or save "
            "between two epochs."
        )


def load(
    fields: StateFields,
    identity: Identity,
    *,
    has_generator: bool,
    is_stateful: bool = False,
    deals_itself_out: bool = False,
) -> tuple[Position, list[BadSample]]:
    """The position in a state; StateError, naming the field, if it is damaged.

    `has_generator` says whether the loader was given a generator, `is_stateful` whether its iterable dataset
    has a state of its own, `deals_itself_out` whether it can go on with another number of workers. Nothing is
    used before all of it is checked.
    """
    position = Position(
        epoch=fields.integer("epoch", most=MOST_EPOCHS),
        step=fields.integer("step"),
        ahead=_ahead(fields),
    )
    follows_sampler = identity["order"] == OrderKind.SAMPLER.value
    position.sampler_state = _sampler(fields, follows_sampler, position.step)
    position.iterable = stream_state.load(
        fields,
        identity.get("num_workers"),
        int(identity["batch_size"] or 1),
        has_generator=has_generator,
        is_stateful=is_stateful,
        deals_itself_out=deals_itself_out,
    )
    return position, _bad_samples(fields)


def _ahead(fields: StateFields) -> frozenset[int]:
    ahead = fields.array("ahead", np.dtype(np.int64))
    if len(ahead) and not 0 <= ahead.min() <= ahead.max() <= MOST:
        fields.refuse("ahead", f"expected numbers of batches from 0 on, but got {ahead.min()}")
    return frozenset(ahead.tolist())


def _bad_samples(fields: StateFields) -> list[BadSample]:
    reasons = fields.entries("bad_reasons", str)
    integers, within = np.dtype(np.int64), "reasons are there"
    epochs = fields.array("bad_epochs", integers, len(reasons), within=within)
    ids = fields.array("bad_ids", integers, len(reasons), within=within)
    if len(epochs) and not 0 <= epochs.min() <= epochs.max() <= MOST_EPOCHS:
        fields.refuse("bad_epochs", f"expected epochs from 0 to {MOST_EPOCHS}")
    return [BadSample(*one) for one in zip(epochs.tolist(), ids.tolist(), reasons, strict=True)]


def _sampler(fields: StateFields, is_followed: bool, position: int) -> SamplerState | None:
    if not is_followed:
        if fields.get("sampler") is not None:
            fields.refuse("sampler", "this loader follows no sampler, but the state has one")
        return None
    saved = fields.inner("sampler")
    start = checked_generators(saved.inner("start"))
    try:
        own = copy.deepcopy(saved.get("sampler"))
    except RecursionError:
        saved.refuse("sampler", "the sampler's own state is nested too deeply")
    epoch = once = None  # Earlier states do not have them.
    if "epoch" in saved.names() and saved.get("epoch") is not None:
        epoch = saved.integer("epoch", most=MOST_EPOCHS)
    if "seeds_once" in saved.names() and saved.get("seeds_once") is not None:
        once = saved.boolean("seeds_once")
    rank, world, length = (
        saved.integer(name, most=most) if name in saved.names() and saved.get(name) is not None else None
        for name, most in (("rank", MOST_RANKS), ("world", MOST_RANKS), ("length", MOST))
    )
    base_seed, draws_seed = saved.integer("base_seed", most=_MOST_SEED), saved.boolean("draws_seed")
    kept_first, kept = (
        checked_parts(saved.inner(name)) if name in saved.names() and saved.get(name) is not None else None
        for name in _KEPT
    )
    state = SamplerState(
        None, start, own, 0, base_seed, draws_seed, once, epoch=epoch, kept_first=kept_first, kept=kept,
        rank=rank, world=world, length=length,
    )  # fmt: skip
    if saved.get("step") is None:
        if position:
            saved.refuse("step", f"missing, but the epoch is at batch {position}")
        return state
    step, seen = saved.integer("step"), saved.integer("seen")
    if step != position:
        saved.refuse("step", f"the sampler is at batch {step}, but the epoch is at batch {position}")
    draws = None if saved.get("draws") is None else checked_draws(saved.inner("draws"))
    digest, stream, drawn = (
        saved.integer(name, most=_MOST_SEED)
        if name in saved.names() and saved.get(name) is not None
        else None
        for name in ("digest", "stream", "drawn")
    )
    if drawn is not None and not step <= drawn <= step + _MOST_AHEAD:
        saved.refuse("drawn", f"the sampler is at batch {step}, but {drawn} are drawn")
    ended = "ended" in saved.names() and saved.boolean("ended")
    return replace(
        state, step=step, seen=seen, draws=draws, drawn=drawn, ended=ended, digest=digest, stream=stream
    )
