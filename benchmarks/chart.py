"""What the plots have in common: an SVG with its own background, readable in light and dark."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"

# The reader's browser chooses between the two; a page that chooses for itself sets `color-scheme` on images.
_STYLE = """
.paper { fill: #ffffff } .text { fill: #1f2328 } .muted { fill: #59636e } .grid { stroke: #d8dee4 }
.grey { fill: #8c959f; stroke: #8c959f } .orange { fill: #d9591f; stroke: #d9591f }
.gold { fill: #9a6700; stroke: #9a6700 } .violet { fill: #8250df; stroke: #8250df }
.range { stroke: #1f2328 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #16181d } .text { fill: #e6edf3 } .muted { fill: #9da7b3 } .grid { stroke: #333a43 }
  .grey { fill: #848d97; stroke: #848d97 } .orange { fill: #f0803c; stroke: #f0803c }
  .gold { fill: #d9a520; stroke: #d9a520 } .violet { fill: #ab7df8; stroke: #ab7df8 }
  .range { stroke: #e6edf3 }
}
"""


def comparisons(name: str) -> list[dict[str, Any]]:
    """The comparisons of a benchmark, as its last kept run found them."""
    found: list[dict[str, Any]] = json.loads((HERE / "results" / f"{name}.json").read_text())["comparisons"]
    return found


def svg(parts: list[str], *, width: int, height: int, title: str) -> str:
    """A picture made of these parts; `title` is what is read to those who do not see it."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, -apple-system, sans-serif" font-size="13">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>{"".join(parts)}</svg>\n'
    )


def text(x: float, y: float, content: str, kind: str = "text", anchor: str = "start", size: int = 13) -> str:
    """A line of text."""
    weight = ' font-weight="600"' if size > 13 else ""
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{weight}'
        f' style="stroke: none">{html.escape(content)}</text>'
    )


def line(name: str, points: list[tuple[float, float]], colour: str, shift: float = 0.0) -> str:
    """A line through points, each with a dot, and its name behind the last, or `shift` pixels below it."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5"/>' for a, b in points)
    return (
        f'<g class="{colour}"><polyline points="{path}" style="fill: none" stroke-width="2.5"/>{dots}</g>'
        f"{text(x + 12, y + 4 + shift, name, colour)}"
    )
