"""Makes the demo's image folder: 1,500 JPEGs of 10 classes, about 320 pixels a side.

    python -m demo.images             # prints the folder, .cache/demo-images

Nothing is downloaded. Each image is a scene that a small network can learn to tell from the
others (bricks, clouds, leaves, ...), at a random angle, scale, colour and light, with another scene
showing through holes in it, things lying in front, blur and sensor noise: so that the classes take
some learning, and files are as large, and as slow to decode, as photographs of that size. Image
`i` of a class depends on nothing but the class, `i` and the versions of NumPy and Pillow.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

TRAIN_IMAGES, VAL_IMAGES = 120, 30  # of each class
SHAPES = ((320, 240), (320, 256), (320, 320), (240, 320), (352, 264))  # width, height
RECIPE = "1"  # raise it when the pictures change, so that old caches are rebuilt
FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "demo-images"


def demo_images(progress: Callable[[int, int], None] | None = None) -> Path:
    """The folder with `train/` and `val/`, made first if need be (calls `progress(done, total)`).

    The folder appears complete or not at all: it is built under another name and then renamed.
    """
    if _is_made(FOLDER):
        return FOLDER
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="demo-images-", dir=FOLDER.parent))
    try:
        _fill(building, progress or (lambda done, total: None))
        (building / "recipe").write_text(RECIPE)
        building.chmod(0o755)
        if FOLDER.exists() and not _is_made(FOLDER):
            shutil.rmtree(FOLDER)  # of an older recipe
        try:
            building.rename(FOLDER)
        except OSError:
            if not _is_made(FOLDER):  # otherwise someone else was faster: theirs is the same
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return FOLDER


def _is_made(folder: Path) -> bool:
    recipe = folder / "recipe"
    return recipe.is_file() and recipe.read_text() == RECIPE


def _fill(folder: Path, progress: Callable[[int, int], None]) -> None:
    files = list(_files(folder))
    for path, _, _ in files:
        path.parent.mkdir(parents=True, exist_ok=True)
    progress(0, len(files))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, _ in enumerate(pool.map(_save, *zip(*files, strict=True), chunksize=10), start=1):
            progress(done, len(files))


def _files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    for scene in SCENES:
        for i in range(TRAIN_IMAGES + VAL_IMAGES):
            part = "train" if i < TRAIN_IMAGES else "val"
            yield folder / part / scene / f"{i:04}.jpg", scene, i


def _save(path: Path, scene: str, number: int) -> None:
    draw(scene, number).save(path, quality=90)


def draw(scene: str, number: int) -> Image.Image:
    """Image `number` of the class `scene`, a key of `SCENES`."""
    rng = np.random.default_rng([list(SCENES).index(scene), number])
    width, height = SHAPES[rng.integers(len(SHAPES))]
    other = rng.choice([name for name in SCENES if name != scene])
    front, back = (
        _balance(rng, SCENES[name](rng, *_coordinates(rng, width, height))) for name in (scene, other)
    )
    colours = np.where(_hole(rng, width, height)[..., None], back, front)
    colours *= 1 + 0.25 * (_noise(rng, width, height, coarsest=24) - 0.5)[..., None]  # fine detail
    image = _to_image(colours)
    _lay_clutter(rng, image)
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 1.0)))
    lit = np.asarray(image, dtype=np.float32) / 255 * _light(rng, width, height)[..., None]
    return _to_image(lit + 0.015 * rng.standard_normal(lit.shape, dtype=np.float32))


# What all scenes share: a camera, noise, colours, light, and things in front.


def _coordinates(rng: np.random.Generator, width: int, height: int) -> tuple[np.ndarray, ...]:
    """The scene's coordinates at each pixel: turned, scaled, shifted and slightly bent."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    x, y = x - width / 2, y - height / 2
    angle, scale = rng.uniform(-0.4, 0.4), rng.uniform(0.7, 1.5)
    tilt = 1 + rng.uniform(-0.25, 0.25) * y / height  # a crude perspective
    bend = 14 * (_noise(rng, width, height, coarsest=3, octaves=2) - 0.5)
    u = (math.cos(angle) * x - math.sin(angle) * y) * scale * tilt + bend
    v = (math.sin(angle) * x + math.cos(angle) * y) * scale * tilt - bend
    return u + rng.uniform(1000, 2000), v + rng.uniform(1000, 2000)


def _noise(
    rng: np.random.Generator, width: int, height: int, coarsest: int = 4, octaves: int = 4
) -> np.ndarray:
    """Smooth noise from 0 to 1: octaves of random grids, the first of `coarsest` cells a side."""
    total = np.zeros((height, width), dtype=np.float32)
    for octave in range(octaves):
        cells = coarsest * 2**octave
        grid = Image.fromarray(rng.random((cells, cells), dtype=np.float32))
        total += np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC)) / 2**octave
    low, high = total.min(), total.max()
    return (total - low) / (high - low)


def _hole(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Where another scene shows through: blots over 20 to 48 % of the image."""
    blots = _noise(rng, width, height, coarsest=3, octaves=3)
    return blots < np.quantile(blots[::4, ::4], rng.uniform(0.2, 0.48))


def _mix(low: tuple[float, ...], high: tuple[float, ...], share: np.ndarray) -> np.ndarray:
    """The colours from `low` (share 0) to `high` (share 1), one for each pixel."""
    a, b = np.array(low, dtype=np.float32), np.array(high, dtype=np.float32)
    return a + (b - a) * share[..., None].astype(np.float32)


def _balance(rng: np.random.Generator, colours: np.ndarray) -> np.ndarray:
    """The colours under a random white balance and saturation, so that hue alone tells little."""
    grey = (colours[..., :1] + colours[..., 1:2] + colours[..., 2:]) / 3
    saturation, gains = rng.uniform(0.3, 1.1), rng.uniform(0.75, 1.25, 3).astype(np.float32)
    return (grey + (colours - grey) * np.float32(saturation)) * gains


def _light(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Brightness at each pixel: a slope of light across the image, soft shadows, an exposure."""
    y, x = np.mgrid[-0.5 : 0.5 : height * 1j, -0.5 : 0.5 : width * 1j].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    slope = math.cos(angle) * x + math.sin(angle) * y
    shadow = _noise(rng, width, height, coarsest=3, octaves=2)
    return rng.uniform(0.75, 1.25) * (1 + rng.uniform(0, 0.6) * slope) * (0.8 + 0.4 * shadow)


def _lay_clutter(rng: np.random.Generator, image: Image.Image) -> None:
    """Draws up to five shapes of any colour onto the image."""
    pen = ImageDraw.Draw(image)
    for _ in range(rng.integers(0, 6)):
        colour = tuple(int(c) for c in rng.integers(20, 235, 3))
        x, y = rng.uniform(0, image.width), rng.uniform(0, image.height)
        w, h = rng.uniform(10, 70, 2)
        kind = rng.integers(3)
        if kind == 0:
            pen.ellipse((x, y, x + w, y + h), fill=colour)
        elif kind == 1:
            corners = rng.uniform(-0.5, 0.5, (4, 2)) * (w, h) + (x, y)
            pen.polygon([tuple(corner) for corner in corners], fill=colour)
        else:
            end = rng.uniform(0, image.width), rng.uniform(0, image.height)
            pen.line((x, y, *end), fill=colour, width=int(rng.integers(2, 8)))


def _to_image(colours: np.ndarray) -> Image.Image:
    return Image.fromarray((np.clip(colours, 0, 1) * 255).astype(np.uint8))


# The scenes. Each takes the random generator and the coordinates and returns colours from 0 to 1.


def _cells(rng: np.random.Generator, row: np.ndarray, column: np.ndarray) -> np.ndarray:
    """One random number from 0 to 1 for each cell of a grid, at each pixel."""
    return rng.random((64, 64), dtype=np.float32)[row.astype(int) % 64, column.astype(int) % 64]


def _bricks(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    height = rng.uniform(18, 30)
    row = np.floor(v / height)
    along = u / (height * 2.2) + 0.5 * (row % 2)
    column = np.floor(along)
    mortar = (v / height - row < 0.12) | (along - column < 0.06)
    wall = _mix((0.45, 0.18, 0.12), (0.75, 0.4, 0.3), _cells(rng, row, column))
    return np.where(mortar[..., None], np.array([0.75, 0.72, 0.68], dtype=np.float32), wall)


def _clouds(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    height, width = u.shape
    cover = _noise(rng, width, height, coarsest=3, octaves=5)
    sky = _mix((0.2, 0.4, 0.75), (0.55, 0.7, 0.9), (v - v.min()) / (v.max() - v.min()))
    white = np.clip((cover - rng.uniform(0.35, 0.5)) * 4, 0, 1)[..., None]
    return sky * (1 - white) + white * np.float32(0.95)


def _leaves(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    height, width = u.shape
    image = Image.new("RGB", (width, height), (20, 40, 15))
    pen = ImageDraw.Draw(image)
    for depth in np.linspace(0.35, 1, 220):
        x, y = rng.uniform(-10, width + 10), rng.uniform(-10, height + 10)
        angle, length = rng.uniform(0, 2 * np.pi), rng.uniform(14, 30)
        ahead = np.array([np.cos(angle), np.sin(angle)]) * length
        aside = np.array([-ahead[1], ahead[0]]) * 0.35
        centre = np.array([x, y])
        rim = [centre - ahead, centre + aside, centre + ahead, centre - aside]
        green = depth * rng.uniform(0.6, 1)
        fill = (int(110 * green), int(200 * green), int(60 * green))
        pen.polygon([tuple(point) for point in rim], fill=fill)
        pen.line((*rim[0], *rim[2]), fill=(int(160 * green), int(220 * green), int(110 * green)))
    return np.asarray(image, dtype=np.float32) / 255


def _pebbles(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Rounded stones: cells around jittered grid points (Worley noise), darker at their edge."""
    size = rng.uniform(26, 40)
    u, v = u / size, v / size
    column, row = np.floor(u).astype(np.int32), np.floor(v).astype(np.int32)
    u, v = (u - column).astype(np.float32), (v - row).astype(np.float32)
    jitter = rng.random((64, 64, 3), dtype=np.float32)
    nearest = np.full(u.shape, 9, dtype=np.float32)
    second, shade = nearest.copy(), np.zeros_like(nearest)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            of_cell = jitter[(row + down) & 63, (column + right) & 63]
            across, along = of_cell[..., 0] + right - u, of_cell[..., 1] + down - v
            away = np.sqrt(across * across + along * along)
            closer = away < nearest
            second = np.where(closer, nearest, np.minimum(second, away))
            shade = np.where(closer, of_cell[..., 2], shade)
            nearest = np.minimum(nearest, away)
    rounded = np.clip((second - nearest) * 4, 0, 1)
    return _mix((0.35, 0.33, 0.3), (0.8, 0.76, 0.7), shade) * (0.25 + 0.75 * rounded[..., None])


def _planks(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    height, width = u.shape
    board = np.floor(v / rng.uniform(45, 70))
    tone = _cells(rng, board, np.zeros_like(board))
    rings = v + 30 * _noise(rng, width, height, coarsest=2, octaves=2) + 40 * tone
    grain = 0.5 + 0.5 * np.sin(rings * rng.uniform(0.5, 0.9) + 2 * np.sin(u / 50))
    wood = _mix((0.4, 0.25, 0.12), (0.72, 0.52, 0.32), 0.6 * grain + 0.4 * tone)
    seam = np.roll(board, 2, axis=0) != board
    return np.where(seam[..., None], np.float32(0.1), wood)


def _stripes(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A zebra's coat."""
    height, width = u.shape
    bend = 120 * _noise(rng, width, height, coarsest=2, octaves=2)
    wave = np.sin((u + bend) * 2 * np.pi / rng.uniform(28, 44))
    return _mix((0.08, 0.07, 0.07), (0.92, 0.9, 0.86), np.clip(0.5 + 3 * wave, 0, 1))


def _tiles(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    size = rng.uniform(30, 48)
    row, column = np.floor(v / size), np.floor(u / size)
    dark = (row + column) % 2
    shade = np.clip(dark + 0.25 * (_cells(rng, row, column) - 0.5), 0, 1)
    floor = _mix((0.9, 0.88, 0.8), (0.2, 0.28, 0.35), shade)
    joint = (v / size - row < 0.05) | (u / size - column < 0.05)
    return np.where(joint[..., None], np.float32(0.5), floor)


def _waves(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    height, width = u.shape
    swell = 40 * _noise(rng, width, height, coarsest=5, octaves=3)
    crest = sum(
        np.sin((v + swell + 0.15 * slant * u) * 2 * np.pi / length) / 3
        for slant, length in zip(rng.uniform(-1, 1, 3).tolist(), (47, 23, 11), strict=True)
    )
    water = _mix((0.03, 0.2, 0.3), (0.3, 0.6, 0.68), 0.5 + 0.5 * crest)
    return np.where((crest > 0.62)[..., None], np.array([0.9, 0.95, 0.95], dtype=np.float32), water)


def _windows(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A house front at night, some windows lit."""
    wide, high = rng.uniform(22, 34), rng.uniform(30, 46)
    row, column = np.floor(v / high), np.floor(u / wide)
    pane = (np.abs(v / high - row - 0.5) < 0.3) & (np.abs(u / wide - column - 0.5) < 0.28)
    lit = _cells(rng, row, column)
    glow = _mix((0.05, 0.07, 0.12), (1.0, 0.85, 0.5), np.where(lit > 0.55, lit, 0))
    return np.where(pane[..., None], glow, np.array([0.16, 0.15, 0.17], dtype=np.float32))


def _berries(rng: np.random.Generator, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    height, width = u.shape
    image = _mix((0.15, 0.3, 0.12), (0.4, 0.5, 0.25), _noise(rng, width, height, coarsest=6))
    for _ in range(rng.integers(22, 36)):
        radius, x, y = rng.uniform(12, 26), rng.uniform(0, width), rng.uniform(0, height)
        left, right = max(0, int(x - radius)), min(width, int(x + radius) + 1)
        top, bottom = max(0, int(y - radius)), min(height, int(y + radius) + 1)
        down, across = np.mgrid[top:bottom, left:right].astype(np.float32)
        across, down = (across - x) / radius, (down - y) / radius
        depth = np.sqrt(np.clip(1 - across**2 - down**2, 0, 1))
        gloss = np.clip(0.45 * depth - 0.4 * across - 0.5 * down, 0, 1) ** 3
        berry = _mix((0.25, 0.02, 0.06), (0.8, 0.12, 0.2), depth) + gloss[..., None]
        patch = image[top:bottom, left:right]
        patch[:] = np.where((depth > 0)[..., None], berry, patch)
    return image


SCENES: dict[str, Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]] = {
    "berries": _berries,
    "bricks": _bricks,
    "clouds": _clouds,
    "leaves": _leaves,
    "pebbles": _pebbles,
    "planks": _planks,
    "stripes": _stripes,
    "tiles": _tiles,
    "waves": _waves,
    "windows": _windows,
}


if __name__ == "__main__":
    print(demo_images())
