"""When cached results are recomputed, if an epoch has only some of the samples: the oldest first.

Where samples are chosen anew for every epoch, results age by their uses, and each by its own. So what is due
is not written down beforehand: of all uses so far one in `factor` recomputes, and in every epoch these are
the samples without a result and then those whose result has been used most often. Only an epoch that has more
samples without a result than its share recomputes more: those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rekindle.choose.chosen_sequence import without_result_first
from rekindle.choose.duplicates.group_turns import GroupTurns
from rekindle.choose.duplicates.substitution import SubstitutingRefresh
from rekindle.choose.rank_homes import Dealt, RankHomes
from rekindle.choose.refresh_schedule import first_of_each, share_of_uses
from rekindle.choose.scores import Scores
from rekindle.choose.selection import Choice
from rekindle.choose.shard import Shard
from rekindle.core import counter_rng


@dataclass(frozen=True)
class RefreshByUse:
    """Decides what is recomputed of the samples that were chosen for an epoch, laid out in such batches."""

    factor: float
    batch_size: int
    drop_last: bool
    shuffle: bool
    shared: bool = False  # Near-duplicates share results: this only tells what each alone would recompute.

    def recompute(self, choice: Choice, epoch: int, scores: Scores) -> tuple[Choice, NDArray[np.int64]]:
        """The choice with the results that its rows use, and the samples that are recomputed, each once."""
        assert choice.uses is not None
        left_out = self._left_out(choice)
        rows = choice.ids.astype(np.int64, copy=False)
        rows = rows if self.shuffle else rows[: len(rows) - left_out]
        ids, counts = np.unique(rows, return_counts=True)
        made = scores.made[ids]
        drawn = counter_rng.seeds(scores.seed, ids, epoch, counter_rng.Step.RECOMPUTE)
        oldest = np.lexsort((drawn, made - scores.uses[ids], made >= 0))  # without a result, then by age
        served = max(len(ids) - left_out, 0) if self.shuffle else len(ids)
        share, missing = share_of_uses(self.factor, int(scores.uses.sum()), served), int((made < 0).sum())
        spared = min(left_out, missing - share) if self.shuffle else 0
        if spared > 0:
            # What is left out are first those without a result; not one that comes more than once.
            at = np.flatnonzero(counts[oldest[:missing]] == 1)[-spared:]
            oldest, missing = np.delete(oldest, at), missing - len(at)
        due = ids[oldest[: max(share, missing)]]
        fresh = np.isin(choice.ids, due)
        return choice._replace(cached=np.where(fresh, choice.uses, scores.made[choice.ids])), due

    def deal(
        self, choice: Choice, homes: RankHomes, epoch: int, seed: int, shared: SubstitutingRefresh | None
    ) -> Choice:
        """The choice with its rows dealt to the ranks that have their results.

        Those of near-duplicates that have a `shared` result go together to the rank that has that.
        """
        if not self.shuffle or choice.uses is None:
            return choice
        ids = choice.ids.astype(np.int64, copy=False)
        if shared is not None:
            units = shared.group_turns.index.units[ids]
            is_due = shared.generations(ids, choice.uses) == choice.uses
            last = shared.spare_first(ids, choice.uses, shared.recomputed(ids, is_due))
            last = last[: self._left_out(choice)]
            dealt = homes.deal(units, is_due, last, seed=seed, epoch=epoch)
            return choice._replace(dealt=_of_samples(dealt, shared.group_turns))
        if choice.cached is None:
            return choice
        is_due = (choice.cached == choice.uses) | (choice.cached < 0)
        first = first_of_each(ids, is_due)
        last = without_result_first(choice.cached, first, seed, epoch)[: self._left_out(choice)]
        return choice._replace(dealt=homes.deal(ids, is_due, last, seed=seed, epoch=epoch))

    def _left_out(self, choice: Choice) -> int:
        return Shard(world=choice.world).left_out(len(choice.ids), self.batch_size, self.drop_last)


def _of_samples(dealt: Dealt, turns: GroupTurns) -> Dealt:
    """Rows dealt by units; of a unit that moves, it may be any member whose result is left behind."""
    return dealt._replace(
        moved=turns.members_of(dealt.moved),
        moved_from=np.repeat(dealt.moved_from, turns.unit_sizes[dealt.moved]),
    )
