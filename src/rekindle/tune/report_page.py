"""A report as HTML: a page that needs nothing else, and the part of it that a notebook shows.

Every text is escaped: class names, paths and exceptions come from the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class StageRow:
    """A stage of the table: its name, what happens in it, and its totals as text."""

    name: str
    description: str
    count: str
    seconds: str
    megabytes: str


@dataclass(frozen=True)
class PageContent:
    """What a page shows: headline figures by their captions, the stages, and lists of plain text."""

    figures: dict[str, str]
    stages: Sequence[StageRow]
    notes: Sequence[str]
    bad_samples: Sequence[str]


# Colours come from the notebook or the page; grey lines and `opacity` suit a light and a dark ground alike.
_STYLE = """
.rekindle-report { font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; }
.rekindle-report dl { display: flex; flex-wrap: wrap; gap: .6rem 2.2rem; margin: 0 0 1.2rem; }
.rekindle-report dl div { display: flex; flex-direction: column-reverse; }
.rekindle-report dt, .rekindle-report .soft { opacity: .65; }
.rekindle-report dt { font-size: .85em; font-weight: 400; }
.rekindle-report dd { font-size: 1.35em; font-variant-numeric: tabular-nums; font-weight: 600; margin: 0; }
.rekindle-report table { border-collapse: collapse; color: inherit; font-size: inherit; width: 100%; }
.rekindle-report th, .rekindle-report td { background: none; border: 0; padding: .35rem .7rem .35rem 0;
  border-bottom: 1px solid rgba(128, 128, 128, .3); text-align: left; vertical-align: top; }
.rekindle-report thead th { font-size: .85em; font-weight: 400; opacity: .65; }
.rekindle-report .number { font-variant-numeric: tabular-nums; padding-right: 0; text-align: right; }
.rekindle-report p, .rekindle-report li { margin: .5rem 0 0; overflow-wrap: anywhere; }
.rekindle-report details { margin-top: 1rem; }
.rekindle-report summary { cursor: pointer; font-weight: 600; }
"""

_PAGE_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --text: #1d2129; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --text: #e8eaee; } }
body { background: var(--ground); color: var(--text); margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { font: 600 1.4rem/1.3 system-ui, sans-serif; margin: 0 0 1.2rem; }
"""


def page(content: PageContent) -> str:
    """The report as a page of its own."""
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'><title>Rekindle report</title>"
        f"<style>{_PAGE_STYLE}</style></head><body><h1>Rekindle report</h1>{fragment(content)}</body>"
        "</html>\n"
    )


def fragment(content: PageContent) -> str:
    """The report as a part of a page, for a notebook: it takes the colours of what is around it."""
    figures = "".join(
        f"<div><dt>{escape(caption)}</dt><dd>{escape(value)}</dd></div>"
        for caption, value in content.figures.items()
    )
    rows = "".join(map(_row, content.stages))
    notes = "".join(f"<p>{escape(note)}</p>" for note in content.notes)
    return (
        f"<div class='rekindle-report'><style>{_STYLE}</style><dl>{figures}</dl>"
        "<table><thead><tr><th>stage</th><th></th><th class='number'>count</th>"
        "<th class='number'>seconds</th><th class='number'>MB</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>{notes}{_bad_samples(content.bad_samples)}</div>"
    )


def _row(stage: StageRow) -> str:
    numbers = "".join(
        f"<td class='number'>{escape(number)}</td>"
        for number in (stage.count, stage.seconds, stage.megabytes)
    )
    return (
        f"<tr><th scope='row'>{escape(stage.name)}</th><td class='soft'>{escape(stage.description)}</td>"
        f"{numbers}</tr>"
    )


def _bad_samples(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<details open><summary>{len(lines):,} bad samples</summary><ul>{items}</ul></details>"
