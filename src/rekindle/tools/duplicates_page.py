"""Groups of near-duplicates as a page of pictures: `rekindle dedupe --html`."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from rekindle.choose import Group, Member, RedundantGroups
from rekindle.core.atomic_file import atomic_write
from rekindle.core.printable import printable
from rekindle.tools.image_recipe import as_jpeg, shrink
from rekindle.tools.rgb_dataset import MapDataset, RgbDataset

_MOST_GROUPS, _MOST_MEMBERS = 200, 24  # so that a browser can still show the page
_SIDE, _QUALITY = 112, 85  # pixels and JPEG quality of a thumbnail


def write_page(groups: RedundantGroups, dataset: MapDataset, path: str | os.PathLike[str]) -> None:
    """Write a page that needs nothing else: the largest groups (among equals, the closest) as pictures."""
    images = RgbDataset(dataset)
    chosen = sorted(groups.groups, key=_rank)[:_MOST_GROUPS]
    for group in chosen:
        images.will_need([member.id for member in group.members[:_MOST_MEMBERS]])
    shown = "".join(_card(group, images) for group in chosen)
    with atomic_write(path) as file:
        file.write(_page(groups, shown, len(chosen)).encode("utf-8", "backslashreplace"))


def _rank(group: Group) -> tuple[int, float]:
    return -len(group.members), max(member.distance or 0 for member in group.members)


def _card(group: Group, images: RgbDataset) -> str:
    named = group.class_name or ("no label" if group.label < 0 else f"label {group.label}")
    more = len(group.members) - _MOST_MEMBERS
    rest = f"<p class='more'>and {more:,} more</p>" if more > 0 else ""
    figures = "".join(_figure(member, images) for member in group.members[:_MOST_MEMBERS])
    title = f"<h2>{_text(named)} <small>{len(group.members)} samples</small></h2>"
    return f"<section>{title}<div class='row'>{figures}</div>{rest}</section>"


def _figure(member: Member, images: RgbDataset) -> str:
    where = _text(member.path or f"sample {member.id}")
    distance = "" if member.distance is None else f" · {member.distance:g}"
    try:
        pixels, _ = images[member.id]
        image = f"<img alt='{where}' src='data:image/jpeg;base64,{_thumbnail(pixels)}'>"
    except Exception:  # Whatever the dataset raises: the image could be read when it was compared.
        image = "<div class='gone'>cannot be read now</div>"
    name = _text(os.path.basename(member.path) or f"sample {member.id}")
    return f"<figure title='{where}'>{image}<figcaption>{name}{distance}</figcaption></figure>"


def _text(text: str) -> str:
    """Text from the data as a page shows it, between tags and in the value of an attribute."""
    return escape(printable(text), quote=True)


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    # Twice as fine as it is shown: screens have two pixels for one of CSS.
    return base64.b64encode(as_jpeg(shrink(pixels, 2 * _SIDE), _QUALITY)).decode()


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
        f"{groups.data}: {len(groups):,} group{'s' * (len(groups) != 1)} of {groups.samples:,} samples "
        f"among {groups.size:,}; "
        f"{groups.copies:,} are redundant."
    )
    measured = f"The number under a picture is its distance to the first of the group: {found.get('measure')}"
    notes = [f"{measured}, at most {found.get('threshold')}.", *_left_out(groups, shown)]
    shown_notes = "".join(f"<p class='note'>{_text(note)}</p>" for note in notes)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'><title>Near-duplicates</title>"
        f"<style>{_STYLE}</style></head><body><h1>Near-duplicates</h1><p>{_text(summary)}</p>{shown_notes}"
        f"<main>{cards}</main></body></html>\n"
    )


def _left_out(groups: RedundantGroups, shown: int) -> Sequence[str]:
    notes = []
    if shown < len(groups):
        notes.append(f"The {shown:,} largest groups are shown; {len(groups) - shown:,} are left out.")
    if groups.unreadable:
        notes.append(f"{len(groups.unreadable):,} samples could not be read, and are in no group.")
    return notes
