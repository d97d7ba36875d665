"""Draws docs/layers.svg: throughput against layers of RandAugment, from the kept results of `layers`."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 110, 24, 48
COLOURS = {"standard": "#555555", "simplified": "#b8860b", "echo": "#7a4fb5", "refurbish": "#d1495b"}


def main() -> None:
    """Read the numbers, write the picture."""
    comparisons = json.loads((HERE / "results" / "layers.json").read_text())["comparisons"]
    lines = {
        row["contender"]: [comparison["rows"][place]["median"] for comparison in comparisons]
        for place, row in enumerate(comparisons[0]["rows"])
    }
    most = 500 * -(-max(max(values) for values in lines.values()) // 500)
    picture = [_axes(len(comparisons), most), *(_line(name, values, most) for name, values in lines.items())]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#333">'
        '<rect width="100%" height="100%" fill="white"/>'
    )
    target = HERE.parent / "docs" / "layers.svg"
    target.write_text(f"{head}{''.join(picture)}</svg>\n", encoding="utf-8")


def _place(layer: int, rate: float, layers: int, most: float) -> tuple[float, float]:
    x = LEFT + (WIDTH - LEFT - RIGHT) * layer / (layers - 1)
    return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / most


def _axes(layers: int, most: float) -> str:
    parts = []
    for tick in range(0, int(most) + 1, 500):
        _, y = _place(0, tick, layers, most)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:,}</text>')
    for layer in range(layers):
        x, y = _place(layer, 0, layers, most)
        parts.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{layer}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">layers of RandAugment</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}" text-anchor="middle">samples/s</text>')
    return "".join(parts)


def _line(name: str, values: list[float], most: float) -> str:
    points = [_place(layer, rate, len(values), most) for layer, rate in enumerate(values)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1]
    colour = COLOURS[name]
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'
        f'<text x="{x + 8:.1f}" y="{y + 4:.1f}" fill="{colour}">{name}</text>'
    )


if __name__ == "__main__":
    main()
