"""The states of a stream's ranks, for other ranks: what is left of it is dealt out again.

One rank's state is enough while all ranks are in step: then each of them has had as many batches of its own
part, and so has each of its workers, which take turns. Nobody need be asked for that. It ends with the first
worker that has no samples left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rekindle.choose import OrderKind
from rekindle.choose.position import IterablePosition
from rekindle.choose.shard import ONE_RANK, Shard
from rekindle.core.state_fields import MOST_EPOCHS, MOST_RANKS, shown
from rekindle.errors import StateError
from rekindle.loader import checkpoint, stream_state
from rekindle.loader.stream_state import MOST_WORKERS
from rekindle.run.resumed_parts import Part, dealt_to_ranks, uneven_parts

_PART = re.compile(r"rank (\d{1,7}) of (\d{1,7})")


class _RankState(NamedTuple):
    """The state of one rank of a stream."""

    state: checkpoint.State
    rank: int
    world: int  # 1: of a whole stream
    epoch: int
    position: IterablePosition | None  # None: between two epochs
    parts: list[Part]  # what is left of its epoch


def for_rank(
    states: Sequence[object] | checkpoint.State, shard: Shard | None, workers: int, *, is_stateful: bool
) -> checkpoint.State:
    """One rank's state, from those of all ranks that read a stream before, or from that of one of them.

    StateError unless these are all of them, at one epoch. A rank that has come to the next has nothing left
    of this one.
    """
    if isinstance(states, dict):
        ranks = _all_in_step(_read(states, "", is_stateful))
    else:
        ranks = _ordered([_read(one, f"states[{at}]", is_stateful) for at, one in enumerate(states)])
    epoch = min(one.epoch for one in ranks)
    if max(one.epoch for one in ranks) > epoch + 1:
        raise StateError(f"epoch: the ranks are in epochs {sorted({one.epoch for one in ranks})}")
    current = [one for one in ranks if one.epoch == epoch]
    own, parts = shard or ONE_RANK, [part for one in current for part in one.parts]
    first = next((one for one in current if one.position is not None), current[0])
    merged = {**first.state, "num_workers": workers, "iterable": None}
    if first.position is not None:
        mine = dealt_to_ranks(parts, own.rank, own.world)
        merged["iterable"] = stream_state.save(
            stream_state.going_on(first.position, mine, max(1, workers), parts)
        )
    merged.pop(checkpoint.STREAM_PART, None)
    return merged if shard is None else merged | {checkpoint.STREAM_PART: checkpoint.stream_part(shard)}


def is_of_another(state: object, shard: Shard | None) -> bool:
    """Whether this is the state of a stream, and of another part of it than this rank's."""
    if not isinstance(state, dict) or state.get("order") != OrderKind.ITERABLE.value:
        return False
    return state.get(checkpoint.STREAM_PART) != (None if shard is None else checkpoint.stream_part(shard))


def for_same_ranks(
    state: checkpoint.State, shard: Shard | None, *, is_stateful: bool
) -> checkpoint.State | None:
    """One rank's state from that of another rank of as many; None if it is not that."""
    one = _read(state, "", is_stateful)
    if shard is None or one.world != shard.world:
        return None
    own = {**state, checkpoint.STREAM_PART: checkpoint.stream_part(shard)}
    if one.position is None:
        return own
    return {**own, "iterable": stream_state.save(_derived(one, shard.rank))}


def _derived(one: _RankState, rank: int) -> IterablePosition:
    """Where another rank stands within an epoch; StateError if this one's state does not say so."""
    state, position = one.state, one.position
    assert position is not None
    found = stream_state.derived(
        position, rank, one.world, state["num_workers"], state["batch_size"] or 1,
        drop_last=bool(state["drop_last"]),
    )  # fmt: skip
    if found is None:
        made = ", ".join(map(str, position.made or ()))
        raise StateError(uneven_parts(f"the workers of rank {one.rank} had {made} batches"))
    return found


def _all_in_step(one: _RankState) -> list[_RankState]:
    """The states of all ranks, from that of one."""
    if one.world == 1 or one.position is None:
        return [one]
    return [
        one if rank == one.rank else _at(one.state, rank, one.world, one.epoch, _derived(one, rank))
        for rank in range(one.world)
    ]


def _read(state: object, path: str, is_stateful: bool) -> _RankState:
    fields = checkpoint.check_version(state, path)
    assert isinstance(state, dict)
    rank, world = 0, 1
    if checkpoint.STREAM_PART in fields.names():
        found = _PART.fullmatch(str(fields.get(checkpoint.STREAM_PART)))
        rank, world = (int(found[1]), int(found[2])) if found else (1, 0)
        if not rank < world <= MOST_RANKS:
            given = shown(fields.get(checkpoint.STREAM_PART))
            fields.refuse(checkpoint.STREAM_PART, f"expected a rank of some, but got {given}")
    workers, batch_size = fields.integer("num_workers", most=MOST_WORKERS), 1
    fields.boolean("drop_last")
    if fields.get("batch_size") is not None:
        batch_size = fields.integer("batch_size", least=1)
    position = stream_state.load(
        fields, workers, batch_size, has_generator=False, is_stateful=is_stateful, deals_itself_out=True
    )
    if position is not None and position.made is None:
        position = None
    return _at(state, rank, world, fields.integer("epoch", most=MOST_EPOCHS), position)


def _at(
    state: checkpoint.State, rank: int, world: int, epoch: int, position: IterablePosition | None
) -> _RankState:
    """A rank that stands at a position, of a run with such a state."""
    parts: list[Part] = []
    if position is not None:
        # A part that was dealt out among workers alone is one of this rank.
        workers, batch_size, drop_last = (
            state["num_workers"],
            state["batch_size"] or 1,
            bool(state["drop_last"]),
        )
        parts = stream_state.parts_of(position, workers, batch_size, rank, world, drop_last=drop_last)
        parts = [part if part["world"] else {**part, "rank": rank, "world": world} for part in parts]
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
