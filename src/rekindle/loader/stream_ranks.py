"""The states of all ranks of a stream, for another number of ranks: what is left of it is dealt out again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rekindle.choose.position import IterablePosition
from rekindle.choose.shard import ONE_RANK, Shard
from rekindle.core.state_fields import MOST_EPOCHS, MOST_RANKS, shown
from rekindle.errors import StateError
from rekindle.loader import checkpoint, stream_state
from rekindle.loader.stream_state import MOST_WORKERS
from rekindle.run.resumed_parts import Part, dealt_to_ranks

_PART = re.compile(r"rank (\d{1,7}) of (\d{1,7})")


class _RankState(NamedTuple):
    """The state of one rank of a stream."""

    state: dict[str, Any]
    rank: int
    world: int  # 1: of a whole stream
    epoch: int
    position: IterablePosition | None  # None: between two epochs
    parts: list[Part]  # what is left of its epoch


def for_rank(
    states: Sequence[Any], shard: Shard | None, workers: int, *, is_stateful: bool
) -> dict[str, Any]:
    """One rank's state, from those of all ranks that read a stream before.

    StateError unless these are all of them, at one epoch. A rank that has come to the next has nothing left
    of this one.
    """
    ranks = _ordered([_read(one, number, is_stateful) for number, one in enumerate(states)])
    epoch = min(one.epoch for one in ranks)
    if max(one.epoch for one in ranks) > epoch + 1:
        raise StateError(f"epoch: the ranks are in epochs {sorted({one.epoch for one in ranks})}")
    current = [one for one in ranks if one.epoch == epoch]
    own, parts = shard or ONE_RANK, [part for one in current for part in one.parts]
    first = next((one for one in current if one.position is not None), current[0])
    merged = {**first.state, "num_workers": workers, "iterable": None}
    if first.position is not None:
        mine = dealt_to_ranks(parts, own.rank, own.world)
        merged["iterable"] = stream_state.save(stream_state.going_on(first.position, mine, max(1, workers)))
    merged.pop(checkpoint.STREAM_PART, None)
    return merged if shard is None else merged | {checkpoint.STREAM_PART: checkpoint.stream_part(shard)}


def _read(state: object, number: int, is_stateful: bool) -> _RankState:
    fields = checkpoint.check_version(state, f"states[{number}]")
    assert isinstance(state, dict)
    rank, world = 0, 1
    if checkpoint.STREAM_PART in fields.names():
        found = _PART.fullmatch(str(fields.get(checkpoint.STREAM_PART)))
        rank, world = (int(found[1]), int(found[2])) if found else (1, 0)
        if not rank < world <= MOST_RANKS:
            given = shown(fields.get(checkpoint.STREAM_PART))
            fields.refuse(checkpoint.STREAM_PART, f"expected a rank of some, but got {given}")
    workers, batch_size = fields.integer("num_workers", most=MOST_WORKERS), 1
    if fields.get("batch_size") is not None:
        batch_size = fields.integer("batch_size", least=1)
    position = stream_state.load(
        fields, workers, batch_size, has_generator=False, is_stateful=is_stateful, deals_itself_out=True
    )
    parts: list[Part] = []
    if position is not None and position.made is None:
        position = None
    if position is not None:
        # A part that was dealt out among workers alone is one of this rank.
        whose: Any = {"rank": rank, "world": world}
        parts = stream_state.parts_of(position, workers, batch_size, rank, world)
        parts = [part if part["world"] else {**part, **whose} for part in parts]
    epoch = fields.integer("epoch", most=MOST_EPOCHS)
    return _RankState(state, rank, world, epoch, position, parts)


def _ordered(ranks: list[_RankState]) -> list[_RankState]:
    """The states in the order of the ranks; StateError if these are not all ranks of one world."""
    found, worlds = sorted(one.rank for one in ranks), {one.world for one in ranks}
    if not ranks or worlds != {len(ranks)} or found != list(range(len(ranks))):
        raise StateError(
            f"expected the states of all ranks that read the stream, but got ranks {found} of "
            f"{' and of '.join(map(str, sorted(worlds))) or 0}. Save that of every rank, at one point of the "
            "script, and give all of them."
        )
    ranks = sorted(ranks, key=lambda one: one.rank)
    for name in ("seed", "dataset_epoch", "drop_last"):
        values = [one.state.get(name) for one in ranks]
        if any(type(value) is not type(values[0]) or value != values[0] for value in values):
            raise StateError(f"{name}: the states of the ranks differ in it, so they are not of one run")
    return ranks
