"""What reuse saved, and what it cost in diversity."""

from __future__ import annotations

from dataclasses import dataclass

from rekindle.reuse.cache.stats import StoreStats
from rekindle.reuse.diversity import Diversity
from rekindle.reuse.view_counter import CountedViews

_NOTICEABLE = 0.01  # more samples recomputed than planned


@dataclass(frozen=True)
class ReuseReport:
    """Reuse since the loader was made.

    `planned_share` of the samples were to be recomputed, `fresh_share` were: more, if the cache did not hold
    all that it was asked for, or was empty after a resume. `held_share` of the dataset is in it. `expected`
    is what the formulas predict for as many epochs as there were; `counted` are the views of some samples,
    whose views were all hashed (see `rekindle.reuse.view_counter`).
    """

    cure: str
    split: str
    planned_share: float
    fresh_share: float
    held_share: float | None
    fits: float
    seconds_saved: float
    store: StoreStats | None
    expected: Diversity | None
    counted: CountedViews | None
    was_empty: bool = False  # after a resume

    def to_dict(self) -> dict[str, str | float | None]:
        """Plain data, fit for JSON."""
        store, expected, counted = self.store, self.expected, self.counted
        return {
            "cure": self.cure,
            "split": self.split,
            "planned_share": self.planned_share,
            "fresh_share": self.fresh_share,
            "share_held": self.held_share,
            "share_that_fits": self.fits,
            "cache_was_empty_after_resume": self.was_empty,
            "seconds_saved": self.seconds_saved,
            "cache_bytes": store.nbytes if store else 0,
            "cache_entries": store.entries if store else 0,
            "cache_hits": store.hits if store else 0,
            "cache_misses": store.misses if store else 0,
            "cache_hits_from_others": store.from_others if store else 0,
            "expected_diversity": None if expected is None else float(expected),
            "expected_distinct_views": None if expected is None else expected.expected,
            "counted_distinct_views": None if counted is None else counted.distinct,
            "counted_views": None if counted is None else counted.views,
            "counted_samples": None if counted is None else counted.samples,
        }

    def lines(self) -> list[str]:
        """The report as lines of text."""
        lines = [f"reuse: {self.cure}, split {self.split}; {self._recomputed()}"]
        if self.store is not None:
            lines.append(
                f"cache: {self.store.entries:,} samples, {self.store.nbytes / 1e6:,.1f} MB, "
                f"{self.fits:.0%} of the dataset fits; {self.seconds_saved:.2f} s of workers' time saved"
            )
            if self.store.from_others:
                lines.append(
                    f"shared: {self.store.misses:,} parts computed here; {self.store.hits:,} found, of which "
                    f"{self.store.from_others:,} were computed by other ranks or jobs"
                )
        if self.expected is not None and self.counted is not None:
            lines.append(
                f"distinct views a sample: {self.expected.expected:.2f} expected "
                f"({self.expected.standard:.2f} without reuse: diversity {float(self.expected):.2f}), "
                f"{self.counted.distinct:.2f} of {self.counted.views:.2f} counted on "
                f"{self.counted.samples} samples"
            )
        return lines

    def _recomputed(self) -> str:
        """What was planned, what happened, and why, if that is more."""
        planned, happened = f"planned {self.planned_share:.0%}", f"recomputed {self.fresh_share:.0%}"
        if self.held_share is None or self.fresh_share < self.planned_share + _NOTICEABLE:
            return f"{planned}, {happened} of the samples"
        holds = f"holds {self.held_share:.0%} of the samples"
        if not self.was_empty:
            return f"{planned}, {happened}: the cache {holds}"
        return f"{planned}, {happened}: the cache was empty after the resume; now it {holds}"
