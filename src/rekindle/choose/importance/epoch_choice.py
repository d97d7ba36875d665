"""The samples of an epoch as a method chooses them."""

from __future__ import annotations

import numpy as np

from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.importance.method import ImportanceMethod, name_of
from rekindle.choose.rank_homes import RankHomes
from rekindle.choose.refresh_by_use import RefreshByUse
from rekindle.choose.scores import Scores
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
) -> Choice:
    """What the method plans, less near-duplicates, for all ranks; counts the samples' uses in `scores`.

    With `refresh`, it says which of them are recomputed; that is noted in `scores`, too. With `homes`, ranks
    keep what they have cached.
    """
    ids, weights = validated(method.plan(epoch, scores), len(scores), name_of(method))
    if duplicates is not None:
        ids, weights = duplicates.epochs.reduce(ids, weights, epoch)
    rank, world = (0, 1) if shard is None else (shard.rank, shard.world)
    choice = Choice(ids, weights, scores.turns[ids].astype(np.int64), bool(method.even_batches), rank, world)
    choice = choice.shared_evenly(scores.seed, epoch)
    if refresh is not None:
        recomputing, due = refresh.recompute(choice, epoch, scores)
        scores.made[due] = scores.uses[due]
        choice = choice if refresh.shared else recomputing
        if homes is not None:
            choice = refresh.deal(choice, homes, epoch, scores.seed)
    chosen = ids if (ids[1:] > ids[:-1]).all() else np.flatnonzero(np.bincount(ids, minlength=1))
    scores.uses[chosen] += 1
    scores.turns[chosen if duplicates is None else duplicates.epochs.used(ids)] += 1
    return choice
