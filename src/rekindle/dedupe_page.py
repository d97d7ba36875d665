"""Groups of near-copies as a page to look at: `rekindle dedupe --html`."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import Group, Member, RedundantGroups
from rekindle.pictures import Pictures

_MOST_GROUPS, _MOST_MEMBERS = 200, 24  # on a page that a browser still likes
_SIDE = 112  # pixels


def write_page(groups: RedundantGroups, dataset: Any, path: str | os.PathLike[str]) -> None:
    """Write a page that needs nothing else: the largest groups, of equal ones the closest, as pictures."""
    pictures = Pictures(dataset)
    chosen = sorted(groups.groups, key=_rank)[:_MOST_GROUPS]
    for group in chosen:
        pictures.will_need([member.id for member in group.members[:_MOST_MEMBERS]])
    shown = "".join(_card(group, pictures) for group in chosen)
    Path(path).write_text(_page(groups, shown, len(chosen)), encoding="utf-8", errors="backslashreplace")


def _rank(group: Group) -> tuple[int, float]:
    return -len(group.members), max(member.distance or 0 for member in group.members)


def _card(group: Group, pictures: Pictures) -> str:
    named = group.class_name or ("no label" if group.label < 0 else f"label {group.label}")
    more = len(group.members) - _MOST_MEMBERS
    rest = f"<p class='more'>and {more:,} more</p>" if more > 0 else ""
    figures = "".join(_figure(member, pictures) for member in group.members[:_MOST_MEMBERS])
    title = f"<h2>{html.escape(named)} <small>{len(group.members)} samples</small></h2>"
    return f"<section>{title}<div class='row'>{figures}</div>{rest}</section>"


def _figure(member: Member, pictures: Pictures) -> str:
    where = html.escape(member.path or f"sample {member.id}", quote=True)
    distance = "" if member.distance is None else f" · {member.distance:g}"
    try:
        pixels, _ = pictures[member.id]
        image = f"<img alt='{where}' src='data:image/jpeg;base64,{_thumbnail(pixels)}'>"
    except Exception:  # A data set's own, whatever they are: it was there when it was compared.
        image = "<div class='gone'>cannot be read now</div>"
    name = html.escape(os.path.basename(member.path) or f"sample {member.id}")
    return f"<figure title='{where}'>{image}<figcaption>{name}{distance}</figcaption></figure>"


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    import cv2
    import simplejpeg

    height, width = pixels.shape[:2]
    ratio = 2 * _SIDE / max(height, width)  # Twice as fine as it is shown: screens are.
    if ratio < 1:
        size = max(1, round(width * ratio)), max(1, round(height * ratio))
        pixels = np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    encoded = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=85, colorspace="RGB")
    return base64.b64encode(encoded).decode()


_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #1d2129; --soft: #667085;
  --line: #e3e6eb; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171c; --card: #1d2128; --text: #e8eaee;
  --soft: #98a1b0; --line: #2c323c; } }
body { background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 76rem; padding: 1.5rem; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
h1 + p, .note { color: var(--soft); margin: 0; overflow-wrap: anywhere; }
main { align-items: flex-start; display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .8rem; }
h2 { font-size: .95rem; margin: 0 0 .5rem; }
small, figcaption, .more, .gone { color: var(--soft); font-weight: 400; }
.row { display: flex; flex-wrap: wrap; gap: .5rem; }
figure { margin: 0; width: 112px; }
img, .gone { background: var(--ground); border-radius: 5px; display: block; height: 112px; width: 112px; }
img { object-fit: contain; }
figcaption, .gone { font-size: .75rem; overflow: hidden; text-align: center; text-overflow: ellipsis;
  white-space: nowrap; }
.more { font-size: .8rem; margin: .4rem 0 0; }
"""


def _page(groups: RedundantGroups, cards: str, shown: int) -> str:
    found = groups.found_by
    summary = (
        f"{groups.data}: {len(groups):,} groups of {groups.samples:,} samples among {groups.size:,}; "
        f"{groups.copies:,} could be spared."
    )
    measured = f"A number under a picture is the distance to the first of its group: {found.get('measure')}"
    notes = [f"{measured}, at most {found.get('threshold')}.", *_left_out(groups, shown)]
    said = "".join(f"<p class='note'>{html.escape(note)}</p>" for note in notes)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'><title>Near-copies</title>"
        f"<style>{_STYLE}</style></head><body><h1>Near-copies</h1><p>{html.escape(summary)}</p>{said}"
        f"<main>{cards}</main></body></html>\n"
    )


def _left_out(groups: RedundantGroups, shown: int) -> Sequence[str]:
    notes = []
    if shown < len(groups):
        notes.append(f"The {shown:,} largest groups are shown; {len(groups) - shown:,} are left out.")
    if groups.unreadable:
        notes.append(f"{len(groups.unreadable):,} samples could not be read, and are in no group.")
    return notes
