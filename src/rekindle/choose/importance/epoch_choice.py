"""The samples of an epoch as a method chooses them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.duplicates.substitution import SubstitutingRefresh
from rekindle.choose.importance.method import ImportanceMethod, name_of
from rekindle.choose.rank_homes import RankHomes
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.sample_ids import Ids
from rekindle.choose.scores import MANY, Scores, stretches
from rekindle.choose.selection import Choice, validated
from rekindle.choose.shard import Shard


def choose_samples(
    method: ImportanceMethod,
    epoch: int,
    scores: Scores,
    duplicates: DuplicatePolicy | None,
    refresh: RefreshByUse | None = None,
    shard: Shard | None = None,
    homes: RankHomes | None = None,
    shared: SubstitutingRefresh | None = None,
) -> Choice:
    """What the method plans, less near-duplicates, for all ranks; counts the samples' uses in `scores`.

    With `refresh`, it says which of them are recomputed; that is noted in `scores`, too. With `homes`, ranks
    keep what they have cached; near-duplicates have `shared` results.
    """
    scores.make_room(epoch + 1)
    ids, weights = validated(method.plan(epoch, scores), len(scores), name_of(method))
    if duplicates is not None:
        ids, weights = duplicates.epochs.reduce(ids.astype(np.int64, copy=False), weights, epoch)
    rank, world = (0, 1) if shard is None else (shard.rank, shard.world)
    uses = None if refresh is None else scores.turns[ids].astype(np.int64)
    choice = Choice(ids, weights, uses, bool(method.even_batches), rank, world)
    choice = choice.shared_evenly(scores.seed, epoch)
    if refresh is not None:
        recomputing, due = refresh.recompute(choice, epoch, scores)
        scores.made[due] = scores.uses[due]
        choice = choice if refresh.shared else recomputing
        if homes is not None:
            choice = refresh.deal(choice, homes, epoch, scores.seed, shared)
    _count(scores.uses, ids)
    if scores.turns is not scores.uses:
        _count(
            scores.turns,
            ids if duplicates is None else duplicates.epochs.used(ids.astype(np.int64, copy=False)),
        )
    return choice


def _count(uses: NDArray[np.signedinteger], ids: Ids) -> None:
    """Count a use of each of these samples, however often it occurs."""
    if len(uses) >= MANY and _count_ascending(uses, ids):
        return
    is_used = np.zeros(len(uses), dtype=np.int8)
    for part in stretches(len(ids)):
        is_used[ids[part]] = 1
    uses += is_used


def _count_ascending(uses: NDArray[np.signedinteger], ids: Ids) -> bool:
    """The same in one pass, without memory for each sample; False, and nothing counted, if not ascending."""
    from rekindle.choose.ids_kernel import add_while_ascending

    add = add_while_ascending(uses.dtype.name, ids.dtype.name)
    ids = np.ascontiguousarray(ids)
    taken = add(uses, ids, 1)
    if taken < len(ids):
        add(uses, ids[:taken], -1)
    return taken == len(ids)
