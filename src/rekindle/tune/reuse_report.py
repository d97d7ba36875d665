"""What reuse saved, and what it cost in diversity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rekindle.reuse import Diversity, StoreStats


@dataclass(frozen=True)
class ReuseReport:
    """Reuse since the loader was made.

    `expected` is from the formulas, for as many epochs as there were; `counted_views` are the distinct views
    of some samples whose views were hashed, out of `watched_views` on average.
    """

    cure: str
    cut: str
    fresh_share: float
    fits: float
    seconds_saved: float
    store: StoreStats | None
    expected: Diversity | None
    counted_views: float | None
    watched_views: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        store, expected = self.store, self.expected
        return {
            "cure": self.cure,
            "cut": self.cut,
            "fresh_share": self.fresh_share,
            "share_that_fits": self.fits,
            "seconds_saved": self.seconds_saved,
            "cache_bytes": store.nbytes if store else 0,
            "cache_entries": store.entries if store else 0,
            "cache_hits": store.hits if store else 0,
            "cache_misses": store.misses if store else 0,
            "expected_diversity": None if expected is None else float(expected),
            "expected_distinct_views": None if expected is None else expected.expected,
            "counted_distinct_views": self.counted_views,
            "watched_views": self.watched_views,
        }

    def lines(self) -> list[str]:
        """The report in words."""
        lines = [f"reuse: {self.cure}, cut {self.cut}; {self.fresh_share:.0%} of the samples made anew"]
        if self.store is not None:
            lines.append(
                f"cache: {self.store.entries:,} samples, {self.store.nbytes / 1e6:,.1f} MB, "
                f"{self.fits:.0%} of the data set fits; {self.seconds_saved:.2f} s of workers' time saved"
            )
        if self.expected is not None and self.counted_views is not None:
            lines.append(
                f"distinct views a sample: {self.expected.expected:.2f} expected "
                f"({self.expected.standard:.2f} without reuse: diversity {float(self.expected):.2f}), "
                f"{self.counted_views:.2f} counted of {self.watched_views:.2f}"
            )
        return lines
