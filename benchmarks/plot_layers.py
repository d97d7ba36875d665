"""Draws docs/layers.svg: throughput against layers of RandAugment, from the kept results of `layers`."""

from __future__ import annotations

from benchmarks.chart import DOCS, comparisons, line, svg, text

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 72, 116, 40, 60
COLOURS = {"standard": "grey", "simplified": "gold", "echo": "violet", "refurbish": "orange"}


def main() -> None:
    """Read the numbers, write the picture."""
    found = comparisons("layers")
    lines = {
        row["contender"]: [comparison["rows"][number]["median"] for comparison in found]
        for number, row in enumerate(found[0]["rows"])
    }
    most = 500 * -(-max(max(values) for values in lines.values()) // 500)
    parts = [*_axes(len(found), most), *(_line(name, values, most) for name, values in lines.items())]
    title = "Samples per second against layers of RandAugment: standard, simplified, echo, refurbish"
    (DOCS / "layers.svg").write_text(svg(parts, width=WIDTH, height=HEIGHT, title=title), encoding="utf-8")


def _point(layer: int, rate: float, layers: int, most: float) -> tuple[float, float]:
    x = LEFT + (WIDTH - LEFT - RIGHT) * layer / (layers - 1)
    return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate / most


def _axes(layers: int, most: float) -> list[str]:
    parts = []
    for tick in range(0, int(most) + 1, 500):
        _, y = _point(0, tick, layers, most)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(text(LEFT - 10, y + 4, f"{tick:,}", "muted", "end"))
    for layer in range(layers):
        x, y = _point(layer, 0, layers, most)
        parts.append(text(x, y + 22, str(layer), "muted", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "layers of RandAugment", anchor="middle"))
    parts.append(text(20, TOP - 16, "samples per second"))
    return parts


def _line(name: str, values: list[float], most: float) -> str:
    points = [_point(layer, rate, len(values), most) for layer, rate in enumerate(values)]
    return line(name, points, COLOURS[name])


if __name__ == "__main__":
    main()
