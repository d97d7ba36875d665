"""The loader's account of where the time went."""

from __future__ import annotations

import html
import io
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rekindle.counters import Counters, Stage
from rekindle.run.bad_samples import BadSample
from rekindle.tune.reuse_report import ReuseReport

_STAGES = {
    "load": "data set: read, decode, augment",
    "collate": "samples into the batch's memory",
    "ship": "memory to tensors",
    "wait": "training loop waited for a batch",
    "consume": "training loop worked on a batch",
    "idle": "workers had nothing to do",
}


@dataclass(frozen=True)
class Report:
    """Totals since the loader was made: prints as a table, or as plain data, or as a page.

    Seconds of `load`, `collate` and `idle` are added up over all workers; the other stages are seconds of
    the training loop.
    """

    stages: dict[str, Stage]
    samples: int
    batches: int
    elapsed_seconds: float
    workers: int
    executor: str
    replaced_workers: int
    bad_samples: list[BadSample]
    reuse: ReuseReport | None = None
    redundancy: dict[str, Any] | None = None  # what became of near-copies
    importance: dict[str, Any] | None = None  # what the method that chooses samples says about itself

    @classmethod
    def of(
        cls,
        counters: Counters,
        *,
        workers: int,
        executor: str,
        bad_samples: list[BadSample],
        reuse: ReuseReport | None = None,
        importance: dict[str, Any] | None = None,
        redundancy: dict[str, Any] | None = None,
    ) -> Report:
        """The report on what these counters say now."""
        return cls(
            stages={name: replace(getattr(counters, name)) for name in _STAGES},
            samples=counters.samples,
            batches=counters.batches,
            elapsed_seconds=time.perf_counter() - counters.started,
            workers=workers,
            executor=executor,
            replaced_workers=counters.replaced_workers,
            bad_samples=list(bad_samples),
            reuse=reuse,
            importance=importance,
            redundancy=redundancy,
        )

    @property
    def wait_seconds(self) -> float:
        """How long the training loop waited for batches."""
        return self.stages["wait"].seconds

    @property
    def wait_share(self) -> float:
        """The part of the training loop's time that was spent waiting."""
        total = self.wait_seconds + self.stages["consume"].seconds
        return self.wait_seconds / total if total and self.batches else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "samples": self.samples,
            "batches": self.batches,
            "elapsed_seconds": self.elapsed_seconds,
            "wait_seconds": self.wait_seconds,
            "wait_share": self.wait_share,
            "workers": self.workers,
            "executor": self.executor,
            "replaced_workers": self.replaced_workers,
            "stages": {
                name: {"calls": stage.calls, "seconds": stage.seconds, "bytes": stage.nbytes}
                for name, stage in self.stages.items()
            },
            "bad_samples": [
                {"epoch": bad.epoch, "id": bad.id, "reason": bad.reason} for bad in self.bad_samples
            ],
            "reuse": None if self.reuse is None else self.reuse.to_dict(),
            "importance": self.importance,
            "redundancy": self.redundancy,
        }

    def to_html(self, path: str | Path) -> None:
        """Write the report as a page that needs nothing else."""
        Path(path).write_text(
            _page(self._summary(), self._rows(), self._lines(), self.bad_samples), encoding="utf-8"
        )

    def __str__(self) -> str:
        table = Table(title=self._summary(), title_justify="left")
        table.add_column("stage")
        for name in ("calls", "seconds", "MB"):
            table.add_column(name, justify="right")
        for row in self._rows():
            table.add_row(*row)
        console = Console(file=io.StringIO(), width=100)
        console.print(table)
        for line in self._lines():
            console.print(line, markup=False, highlight=False)
        for bad in self.bad_samples:
            console.print(f"bad sample {bad.id} in epoch {bad.epoch}: {bad.reason}", markup=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip()

    def _summary(self) -> str:
        parts = [
            f"{self.samples:,} samples in {self.batches:,} batches",
            f"{self.workers} workers ({self.executor})",
            f"waited {self.wait_seconds:.2f} s, {self.wait_share:.0%} of the training loop's time",
        ]
        if self.replaced_workers:
            parts.append(f"{self.replaced_workers} workers replaced")
        if self.bad_samples:
            parts.append(f"{len(self.bad_samples)} bad samples")
        return " · ".join(parts)

    def _lines(self) -> list[str]:
        """What there is to say beside the table."""
        lines = [] if self.reuse is None else self.reuse.lines()
        told = {"importance": self.importance, "redundancy": self.redundancy}
        return [*lines, *(_told(name, about) for name, about in told.items() if about is not None)]

    def _rows(self) -> list[tuple[str, str, str, str]]:
        return [
            (
                f"{name}: {_STAGES[name]}",
                f"{stage.calls:,}",
                f"{stage.seconds:.3f}",
                f"{stage.nbytes / 1e6:,.1f}" if stage.nbytes else "",
            )
            for name, stage in self.stages.items()
        ]


def _told(what: str, about: dict[str, Any]) -> str:
    return f"{what}: " + ", ".join(f"{name} {value}" for name, value in about.items())


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .4rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""


def _page(summary: str, rows: list[tuple[str, str, str, str]], lines: list[str], bad: list[BadSample]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("stage", "calls", "seconds", "MB"))
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    found = "".join(f"<li>sample {one.id}, epoch {one.epoch}: {html.escape(one.reason)}</li>" for one in bad)
    more = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    listed = f"<h2>Bad samples</h2><ul>{found}</ul>" if bad else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Rekindle report</title>"
        f"<style>{_STYLE}</style></head><body><h1>Rekindle report</h1><p>{html.escape(summary)}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}{listed}</body></html>\n"
    )
