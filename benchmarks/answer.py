"""What a benchmark finds: contenders side by side, ratios to the peer, whether bars hold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

YES, NO, UNSURE = "yes", "no", "within spread"


@dataclass(frozen=True)
class Bar:
    """A promise: on the ratio to the peer (`≥` or `≤`), or on the value itself (`<`)."""

    sign: str
    limit: float
    unit: str = "×"  # a value's own unit otherwise
    aim: bool = False  # a goal rather than a promise

    def __str__(self) -> str:
        limit = f"{self.limit:g}×" if self.unit == "×" else show(self.limit, self.unit)
        return f"{'aim ' if self.aim else ''}{self.sign} {limit}"

    def holds(self, median: float, rounds: Sequence[float]) -> str:
        """`yes` or `no` for the median; `within spread` if it misses where some round does not."""
        if self._met(median):
            return YES
        return UNSURE if any(map(self._met, rounds)) else NO

    def _met(self, value: float) -> bool:
        if self.sign == "≥":
            return value >= self.limit
        return value <= self.limit if self.sign == "≤" else value < self.limit


@dataclass(frozen=True)
class Row:
    """One contender: its value in each round, and its ratio to the peer's of the same round."""

    contender: str
    values: list[float]
    median: float
    ratio: float | None  # of the medians
    ratio_low: float | None
    ratio_high: float | None
    bars: list[str] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)  # one for each of `bars`


@dataclass(frozen=True)
class Comparison:
    """Contenders at one piece of work; the first is the peer that ratios refer to."""

    title: str
    unit: str
    rows: list[Row]


def compare(
    title: str,
    unit: str,
    found: Mapping[str, Sequence[float]],
    bars: Mapping[str, Sequence[Bar]],
) -> Comparison:
    """The contenders' values of each round, with medians, ratios to the first one, and verdicts."""
    peer, *_ = found
    rows = [
        _row(name, values, None if name == peer else found[peer], bars.get(name, ()))
        for name, values in found.items()
    ]
    return Comparison(title, unit, rows)


def list_values(
    title: str,
    unit: str,
    found: Mapping[str, Sequence[float]],
    bars: Mapping[str, Sequence[Bar]],
) -> Comparison:
    """The values of each round of things that are not compared with each other, with verdicts."""
    return Comparison(
        title, unit, [_row(name, values, None, bars.get(name, ())) for name, values in found.items()]
    )


def _row(name: str, values: Sequence[float], peer: Sequence[float] | None, bars: Sequence[Bar]) -> Row:
    median = statistics.median(values)
    # Without a peer the values may be 0.
    ratios = [1.0] if peer is None else [a / b for a, b in zip(values, peer, strict=True)]
    ratio = 1.0 if peer is None else median / statistics.median(peer)
    on_ratio = [bar.unit == "×" and peer is not None for bar in bars]  # else on the value, which may be one
    return Row(
        contender=name,
        values=[float(value) for value in values],
        median=median,
        ratio=None if peer is None else ratio,
        ratio_low=None if peer is None else min(ratios),
        ratio_high=None if peer is None else max(ratios),
        bars=[str(bar) for bar in bars],
        holds=[
            bar.holds(ratio, ratios) if is_on_ratio else bar.holds(median, values)
            for bar, is_on_ratio in zip(bars, on_ratio, strict=True)
        ],
    )


def table(comparison: Mapping[str, Any]) -> Table:
    """Medians, ratios and bars of a comparison that `dataclasses.asdict` has made plain data."""
    rows, unit = comparison["rows"], comparison["unit"]
    with_ratios = any(row["ratio"] is not None for row in rows)
    ratio_headings = ("ratio", "min–max") if with_ratios else ()
    out = Table(box=SIMPLE_HEAD)
    out.add_column("contender")
    for heading in (unit, "min–max", *ratio_headings, "bar", "holds"):
        out.add_column(heading, justify="right")
    for row in rows:
        ratios = ("", "") if with_ratios else ()
        if row["ratio"] is not None:
            spread = f"{show(row['ratio_low'])}–{show(row['ratio_high'])}"
            ratios = (f"{show(row['ratio'])}×", spread)
        out.add_row(
            row["contender"],
            show(row["median"]),
            f"{show(min(row['values']))}–{show(max(row['values']))}",
            *ratios,
            "\n".join(row["bars"]),
            "\n".join(row["holds"]),
        )
    return out


def show(value: float, unit: str = "") -> str:
    """The value with at least three significant digits, short enough for a table, and its unit.

    >>> show(1234567), show(12345.6), show(0.012345, "s")
    ('1,235k', '12,346', '0.0123 s')
    """
    if value >= 100_000:
        number = f"{value / 1000:,.0f}k"
    else:
        number = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".rstrip()
