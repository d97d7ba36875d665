"""Draws docs/gain.svg, the picture of the README, from the kept results of `reuse`.

python -m benchmarks reuse --data images.tar --keep
python -m benchmarks.plot_gain
"""

from __future__ import annotations

from typing import Any

from benchmarks.chart import DOCS, comparisons, svg, text

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP = 252, 136, 76
BAR, PITCH = 26, 48
CONTENDERS = {
    "torch": ("torch DataLoader", "torchvision on Pillow images"),
    "unchanged, refurbished": ("Rekindle, same dataset", "reuse=Refurbish(3)"),
    "standard": ("Rekindle, native images", "rk.open, rk.transforms"),
    "refurbished": ("Rekindle, native images", "reuse=Refurbish(3)"),
}


def main() -> None:
    """Read the numbers, write the picture."""
    rows = {row["contender"]: row for row in comparisons("reuse")[0]["rows"]}
    (DOCS / "gain.svg").write_text(picture(rows), encoding="utf-8")


def picture(rows: dict[str, dict[str, Any]]) -> str:
    """A bar for each contender: the median of its rounds, and a line from the least to the most."""
    most = max(max(row["values"]) for row in rows.values())
    scale = (WIDTH - LEFT - RIGHT) / most
    parts = [
        text(24, 32, "Training images per second, on two CPU cores", size=17),
        text(
            24,
            54,
            "1,000 photographs: decode, RandomResizedCrop(224), RandAugment(2, 9), flip, normalize",
            "muted",
        ),
    ]
    for number, (name, (what, how)) in enumerate(CONTENDERS.items()):
        parts += _bar(rows[name], what, how, TOP + PITCH * number, scale)
    parts.append(
        text(
            24,
            HEIGHT - 16,
            "Median of five alternated rounds; the line is the fastest and slowest round.",
            "muted",
        )
    )
    gain = rows["refurbished"]["ratio"]
    return svg(
        parts,
        width=WIDTH,
        height=HEIGHT,
        title=f"Rekindle with Refurbish(3) is {gain:.1f} times as fast as torch",
    )


def _bar(row: dict[str, Any], what: str, how: str, top: float, scale: float) -> list[str]:
    end, middle = LEFT + row["median"] * scale, top + BAR / 2
    low, high = (LEFT + value * scale for value in (min(row["values"]), max(row["values"])))
    ratio = "1×" if row["ratio"] is None else f"{row['ratio']:.1f}×"
    rate = f"{row['median']:,.0f}/s"
    ends = f"M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
    return [
        text(LEFT - 14, middle - 3, what, anchor="end"),
        text(LEFT - 14, middle + 13, how, "muted", "end", size=12),
        f'<rect class="{"grey" if row["ratio"] is None else "orange"}" x="{LEFT}" y="{top}" '
        f'width="{end - LEFT:.1f}" height="{BAR}" rx="3"/>',
        f'<path class="range" d="M{low:.1f} {middle}H{high:.1f}{ends}"/>',
        f'<text class="text" x="{max(end, high) + 12:.1f}" y="{middle + 6}" font-size="17" font-weight="600">'
        f'{ratio}<tspan class="muted" dx="9" font-size="13" font-weight="400">{rate}</tspan></text>',
    ]


if __name__ == "__main__":
    main()
