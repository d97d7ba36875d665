"""Draws docs/growth.svg: time to the first batch against the dataset's size, from the results of `growth`."""

from __future__ import annotations

import math

from benchmarks.chart import DOCS, comparisons, line, svg, text

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 72, 130, 40, 60
COLOURS = {
    "torch, shuffled": "grey",
    "in order": "gold",
    "shuffled": "orange",
    "Refurbish(3)": "violet",
}
LOWEST, HIGHEST = -1, 5  # powers of ten, in ms
SMALLEST, LARGEST = 3, 9  # in samples


def main() -> None:
    """Read the numbers, write the picture."""
    found = {one["title"]: one["rows"] for one in comparisons("growth")}
    parts = _axes()
    for kind, colour in COLOURS.items():
        rows = found[f"first batch: {kind}"]
        points = [_point(math.log10(float(row["contender"])), math.log10(row["median"])) for row in rows]
        # The names of lines that end at the same place stand one above the other.
        parts.append(line(kind, points, colour, {"in order": 10.0, "shuffled": -8.0}.get(kind, 0.0)))
    title = "Milliseconds to the first batch against samples: in order, shuffled, refurbish, torch"
    (DOCS / "growth.svg").write_text(svg(parts, width=WIDTH, height=HEIGHT, title=title), encoding="utf-8")


def _point(samples: float, milliseconds: float) -> tuple[float, float]:
    """Where a point lies, from the logarithms of its numbers."""
    x = LEFT + (WIDTH - LEFT - RIGHT) * (samples - SMALLEST) / (LARGEST - SMALLEST)
    share = (milliseconds - LOWEST) / (HIGHEST - LOWEST)
    return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _axes() -> list[str]:
    parts = []
    for power in range(LOWEST, HIGHEST + 1):
        _, y = _point(SMALLEST, power)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 10, y + 4, f"{10.0**power:,.15g}", "muted", "end"))
    for power in range(SMALLEST, LARGEST + 1):
        x, y = _point(power, LOWEST)
        parts.append(text(x, y + 22, f"10^{power}", "muted", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "samples of the dataset", anchor="middle"))
    parts.append(text(20, TOP - 16, "ms of CPU to the first batch"))
    return parts


if __name__ == "__main__":
    main()
