"""The loader's account of where the time went."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, overload

from rich.console import Console
from rich.table import Table

from rekindle.core.atomic_file import atomic_write
from rekindle.core.counters import Counters, Stage
from rekindle.core.printable import printable
from rekindle.reuse.report import ReuseReport
from rekindle.run.bad_samples import BadSample
from rekindle.tune.report_page import PageContent, StageRow, fragment, page

_STAGES = {
    "start": "training loop waited in iter()",
    "load": "dataset: read, decode, augment",
    "collate": "samples into the batch's memory",
    "ship": "memory to tensors",
    "wait": "training loop waited for a batch",
    "consume": "training loop worked on a batch",
    "idle": "workers had nothing to do",
}
_BATCHES = "batch", "batches"
_COUNTED = {"start": ("epoch", "epochs"), "load": ("sample", "samples"), "collate": ("sample", "samples")}


@dataclass(frozen=True, repr=False)
class Report:
    """Totals since the loader was made: prints as a table, renders in notebooks, exports to a dict or a page.

    Seconds of `load`, `collate` and `idle` are summed over all workers; the other stages are seconds of the
    training loop. What a stage's `calls` count are epochs for `start`, samples for `load` and `collate`,
    batches for the others. Workers load ahead, so `load` may have more samples than were yielded.

    Example:
        >>> import rekindle as rk
        >>> loader = rk.DataLoader(range(8), batch_size=4)
        >>> batches = list(loader)
        >>> report = loader.report()
        >>> report.samples, report.batches, report.stages["load"].calls
        (8, 2, 8)

    """

    stages: dict[str, Stage]
    samples: int
    batches: int
    elapsed_seconds: float
    workers: int
    executor: str
    threads: int  # up to which a worker process has
    replaced_workers: int
    bad_samples: list[BadSample]
    reuse: ReuseReport | None = None
    redundancy: Mapping[str, object] | None = None  # how near-duplicates were treated
    importance: Mapping[str, object] | None = None  # what the importance method reports about itself
    native: str | None = None  # what `native="auto"` came to, and why

    @classmethod
    def of(
        cls,
        counters: Counters,
        *,
        workers: int,
        executor: str,
        threads: int,
        bad_samples: list[BadSample],
        reuse: ReuseReport | None = None,
        importance: Mapping[str, object] | None = None,
        redundancy: Mapping[str, object] | None = None,
        native: str | None = None,
    ) -> Report:
        """The report on the present state of these counters."""
        return cls(
            stages={name: replace(getattr(counters, name)) for name in _STAGES},
            samples=counters.samples,
            batches=counters.batches,
            elapsed_seconds=time.perf_counter() - counters.started,
            workers=workers,
            executor=executor,
            threads=threads,
            replaced_workers=counters.replaced_workers,
            bad_samples=list(bad_samples),
            reuse=reuse,
            importance=importance,
            redundancy=redundancy,
            native=native,
        )

    @property
    def start_seconds(self) -> float:
        """How long the training loop waited for epochs to start, within `iter(loader)`."""
        return self.stages["start"].seconds

    @property
    def wait_seconds(self) -> float:
        """How long the training loop waited for batches, once an epoch had started."""
        return self.stages["wait"].seconds

    @property
    def wait_share(self) -> float:
        """The fraction of the training loop's time that was spent waiting for batches; starting apart."""
        total = self.wait_seconds + self.stages["consume"].seconds
        return self.wait_seconds / total if total and self.batches else 0.0

    @property
    def _who(self) -> str:
        """What the workers are, as it is shown."""
        if self.executor == "processes" and self.workers == 1:
            return "process"
        if self.threads == 1 or self.executor != "processes":
            return self.executor
        processes = -(-self.workers // self.threads)
        threads = -(-self.workers // processes)
        each = f"{threads} threads" if self.workers % processes == 0 else f"up to {threads} threads"
        return f"{processes} process{'es' if processes > 1 else ''} × {each}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            "samples": self.samples,
            "batches": self.batches,
            "elapsed_seconds": self.elapsed_seconds,
            "start_seconds": self.start_seconds,
            "wait_seconds": self.wait_seconds,
            "wait_share": self.wait_share,
            "workers": self.workers,
            "executor": self.executor,
            "threads": self.threads,
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
            "native": self.native,
        }

    @overload
    def to_html(self) -> str: ...

    @overload
    def to_html(self, path: str | os.PathLike[str]) -> None: ...

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The report as a page that needs nothing else: returned as a string, or written to `path`.

        Args:
            path: The file to write; None returns the page.

        """
        text = page(self._content())
        if path is None:
            return text
        with atomic_write(path) as file:
            file.write(text.encode("utf-8", "backslashreplace"))
        return None

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return fragment(self._content())

    def __repr__(self) -> str:
        table = Table(title=self._summary(), title_justify="left")
        table.add_column("stage")
        for name in ("count", "seconds", "MB"):
            table.add_column(name, justify="right")
        for row in self._rows():
            table.add_row(f"{row.name}: {row.description}", row.count, row.seconds, row.megabytes)
        text = io.StringIO()
        # In a notebook, rich would show it itself.
        console = Console(file=text, width=100, force_jupyter=False)
        console.print(table)
        for note in self._notes():
            console.print(note, markup=False, highlight=False, emoji=False)
        for bad in self.bad_samples:
            console.print(f"bad {_described(bad)}", markup=False, highlight=False, emoji=False)
        return text.getvalue().rstrip()

    def _summary(self) -> str:
        parts = [
            f"{_counted(self.samples, 'sample')} in {_counted(self.batches, *_BATCHES)}",
            f"{_counted(self.workers, 'worker')} ({self._who})",
            f"started in {self.start_seconds:.2f} s",
            f"waited {self.wait_seconds:.2f} s, {self.wait_share:.0%} of the time after starting",
        ]
        if self.replaced_workers:
            parts.append(f"{_counted(self.replaced_workers, 'worker')} replaced")
        if self.bad_samples:
            parts.append(_counted(len(self.bad_samples), "bad sample"))
        return " · ".join(parts)

    def _content(self) -> PageContent:
        figures = {
            "samples": f"{self.samples:,}",
            "batches": f"{self.batches:,}",
            f"workers ({self._who})": f"{self.workers}",
            "starting": f"{self.start_seconds:.2f} s",
            "waiting for batches": f"{self.wait_seconds:.2f} s",
            "of the time after starting": f"{self.wait_share:.0%}",
        }
        if self.replaced_workers:
            figures["workers replaced"] = f"{self.replaced_workers}"
        return PageContent(figures, self._rows(), self._notes(), list(map(_described, self.bad_samples)))

    def _notes(self) -> list[str]:
        """What there is to report beside the table."""
        notes = self._loaded_ahead()
        notes += [] if self.native is None else [f'native="auto": {self.native}']
        notes += [] if self.reuse is None else self.reuse.lines()
        sections = {"importance": self.importance, "redundancy": self.redundancy}
        for title, values in sections.items():
            if values is not None:
                notes.append(f"{title}: " + ", ".join(f"{name} {value}" for name, value in values.items()))
        return list(map(printable, notes))

    def _loaded_ahead(self) -> list[str]:
        """Why more samples were loaded than yielded, if they were."""
        loaded = self.stages["load"].calls
        more = loaded - self.samples - len(self.bad_samples)
        if more <= 0:
            return []
        again = ", or again for a replaced worker" if self.replaced_workers else ""
        return [
            f"load: {_counted(more, 'sample')} more than yielded, loaded ahead for the next batches{again}"
        ]

    def _rows(self) -> list[StageRow]:
        return [
            StageRow(
                name,
                _STAGES[name],
                _counted(stage.calls, *_COUNTED.get(name, _BATCHES)),
                f"{stage.seconds:.3f}",
                f"{stage.nbytes / 1e6:,.1f}" if stage.nbytes else "",
            )
            for name, stage in self.stages.items()
        ]


def _counted(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def _described(bad: BadSample) -> str:
    return printable(f"sample {bad.id} in epoch {bad.epoch}: {bad.reason}")
