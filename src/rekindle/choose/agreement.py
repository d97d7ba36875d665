"""What the ranks of a run must have in common: one decides, all agree, and whoever is missing is named.

Everything here goes through the store of torch.distributed: a few bytes from each rank, whatever the backend
and without a device. Rank 0 reads what all ranks have put there and answers, so that a rank reads one answer
and not those of all others. Nobody waits longer than the `timeout` of `init_process_group`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from rekindle.errors import RankError

Fact: TypeAlias = int | float | str | bool | None
Store: TypeAlias = Any  # of torch.distributed; what torch says of it to type checkers is not all of it

_ANSWER_SECONDS = 5.0  # that the other ranks wait longer than rank 0, to hear from it who is missing
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.1  # seconds between two looks


class _Meetings:
    """What this process has asked through one store so far: the same on every rank of one script."""

    def __init__(self, store: Store) -> None:
        self.store, self.numbers, self.answered = store, Counter[str](), ""

    def next_key(self, name: str) -> str:
        """A key that the same call has on every rank."""
        number = self.numbers[name]
        self.numbers[name] += 1
        return f"rekindle/{name}/{number}"


_meetings: _Meetings | None = None


def _met() -> _Meetings:
    global _meetings
    store = _get_default_store()
    if _meetings is None or _meetings.store is not store:
        _meetings = _Meetings(store)
    return _meetings


def decided_by_first_rank(name: str, decide: Callable[[], int]) -> int:
    """What rank 0 decides, on all ranks; each must ask, and only rank 0 is waited for.

    Without torch.distributed, what is decided here. RankError if rank 0 does not come.
    """
    if not has_ranks():
        return decide()
    meetings = _met()
    key = meetings.next_key(name)
    if dist.get_rank() == 0:
        decision = decide()
        meetings.store.set(key, str(decision))
        return decision
    timeout = store_timeout(meetings.store)
    if not _comes(meetings.store, [key], timeout):
        raise RankError(
            f"rank {dist.get_rank()} waits for rank 0, which decides on {name} for all ranks, but has not "
            f"within {timeout:g} s (the timeout of init_process_group). Does rank 0 make "
            "the same loaders in the same order, with the same arguments?"
        )
    return int(meetings.store.get(key))


def agree(name: str, facts: Mapping[str, Fact], part: int | None = None) -> None:
    """Wait until all ranks are here with the same `facts`, and each with a `part` of its own, if it has one.

    RankError, on every rank, names those that are missing, or those that differ and in what.
    """
    if not has_ranks():
        return
    meetings, rank, world = _met(), dist.get_rank(), dist.get_world_size()
    store, key = meetings.store, meetings.next_key(name)
    timeout = store_timeout(store)
    store.set(f"{key}/{rank}", json.dumps(dict(facts) if part is None else {**facts, _PART: part}))
    answer_key = f"{key}/answer"
    if rank == 0:
        missing, everyones = _gather(store, [f"{key}/{one}" for one in range(world)], timeout)
        parts = [facts.pop(_PART, None) for facts in everyones]
        problem = _missing(name, missing, timeout) if missing else differences(name, everyones)
        problem = problem or _same_parts(name, parts)
        store.set(answer_key, problem or "agreed")
        # Whoever is here has read the answer before this one.
        _forget(store, [*(f"{key}/{one}" for one in range(world)), meetings.answered])
        meetings.answered = answer_key
    elif _comes(store, [answer_key], timeout + _ANSWER_SECONDS):
        answer = store.get(answer_key).decode()
        problem = "" if answer == "agreed" else answer
    else:
        problem = _missing(name, [0], timeout)
    if problem:
        raise RankError(problem)


def group_store(name: str) -> tuple[Store, str]:
    """The store of all ranks, and a key that the same call has on every rank."""
    meetings = _met()
    return meetings.store, meetings.next_key(name)


def has_ranks() -> bool:
    """Whether this process is one of several ranks of torch.distributed."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def differences(name: str, everyones: Sequence[Mapping[str, Fact]]) -> str:
    """In what the facts of the ranks differ, naming the ranks that are not as most are; "" if in nothing.

    >>> differences("the loader", [{"seed": 1}, {"seed": 1}, {"seed": 2}]).partition(".")[0]
    'the ranks do not agree on the loader: seed is 2 on rank 2, and 1 on the others'
    """
    found = []
    for fact in dict.fromkeys(fact for facts in everyones for fact in facts):
        values = [json.dumps(facts.get(fact)) for facts in everyones]
        usual = Counter(values).most_common(1)[0][0]
        others = [rank for rank, value in enumerate(values) if value != usual]
        if others:
            shown = ", ".join(f"{values[rank]} on rank {rank}" for rank in others[:_SHOWN])
            more = f" (and {len(others) - _SHOWN} more)" if len(others) > _SHOWN else ""
            found.append(f"{fact} is {shown}{more}, and {usual} on the others")
    if not found:
        return ""
    return (
        f"the ranks do not agree on {name}: {'; '.join(found)}. Every rank must make its loader with the "
        "same arguments, over the same dataset, and load the same state."
    )


def _same_parts(name: str, parts: Sequence[Fact]) -> str:
    """Which ranks have the same part, where one has; "" if each has its own."""
    part, count = Counter(parts).most_common(1)[0] if parts else (None, 0)
    if part is None or count == 1:
        return ""
    have = named_ranks([rank for rank, one in enumerate(parts) if one == part])
    missing = sorted({*range(len(parts))} - {*parts})
    return (
        f"the ranks do not agree on {name}: {have} of torch.distributed all load the part of rank {part}, "
        f"and nobody loads that of {named_ranks(missing)}. Give each its number among all ranks (RANK, not "
        'LOCAL_RANK), in shard= or in its sampler; shard="ranks" does.'
    )


_PART = "part"
_SHOWN = 8  # ranks in a message


def named_ranks(ranks: Sequence[int]) -> str:
    """Ranks in a message.

    >>> named_ranks([1]), named_ranks([1, 2])
    ('rank 1', 'ranks 1, 2')
    """
    shown = ", ".join(map(str, ranks[:_SHOWN])) + ", …" * (len(ranks) > _SHOWN)
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _missing(name: str, ranks: Sequence[int], timeout: float) -> str:
    who = f"{named_ranks(ranks)} {'have' if len(ranks) > 1 else 'has'}"
    return (
        f"{who} not come to exchange {name} within {timeout:g} s (the timeout of init_process_group). Every "
        "rank must do so: has one died, is it held up, or does it iterate over fewer loaders or epochs? (A "
        "loader for one rank alone goes without shard=.)"
    )


class _Gathered(NamedTuple):
    missing: list[int]
    facts: list[dict[str, Fact]]


def _gather(store: Store, keys: list[str], timeout: float) -> _Gathered:
    """What is under the keys, one for each rank, and which ranks have put nothing there in time."""
    if not _comes(store, keys, timeout):
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if missing:
            return _Gathered(missing, [])
    return _Gathered([], [json.loads(value) for value in read_values(store, keys)])


def read_values(store: Store, keys: list[str]) -> list[bytes]:
    """What is under keys that are all there."""
    values: list[bytes] = (
        store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    )
    return values


def _comes(store: Store, keys: list[str], timeout: float) -> bool:
    """Whether all keys are in the store before the time is over; an interrupt ends the wait at once."""
    deadline, wait = time.monotonic() + timeout, pauses()
    while not store.check(keys):
        if time.monotonic() >= deadline:
            return False
        time.sleep(next(wait))
    return True


def pauses() -> Iterator[float]:
    """How long to wait between two looks into the store, in seconds: longer and longer."""
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)


def _forget(store: Store, keys: list[str]) -> None:
    for key in filter(None, keys):
        with suppress(RuntimeError):  # Some stores cannot.
            store.delete_key(key)


def store_timeout(store: Store) -> float:
    """How long to wait for other ranks, in seconds."""
    seconds: float = store.timeout.total_seconds()
    return seconds
