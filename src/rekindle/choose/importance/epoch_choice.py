"""The samples of an epoch as a method chooses them."""

from __future__ import annotations

import numpy as np

from rekindle.choose import distributed
from rekindle.choose.duplicates.policy import DuplicatePolicy
from rekindle.choose.importance.method import ImportanceMethod, name_of
from rekindle.choose.scores import Scores
from rekindle.choose.selection import Choice, validated


def choose_samples(
    method: ImportanceMethod, epoch: int, scores: Scores, duplicates: DuplicatePolicy | None
) -> Choice:
    """What the method plans, less near-duplicates, for all ranks; counts the samples' uses in `scores`."""
    ids, weights = validated(method.plan(epoch, scores), len(scores), name_of(method))
    if duplicates is not None:
        ids, weights = duplicates.epochs.reduce(ids, weights, epoch)
    rank, world = distributed.rank_and_world()
    choice = Choice(ids, weights, scores.turns[ids], bool(method.even_batches), rank, world)
    chosen = np.unique(ids)
    scores.uses[chosen] += 1
    scores.turns[chosen if duplicates is None else duplicates.epochs.used(ids)] += 1
    return choice.shared_evenly(scores.seed, epoch)
