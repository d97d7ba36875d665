"""Where benchmarks get images from: a folder or tar that the user names, or the demo's images."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from demo.folder import IMAGE_ENDINGS
from demo.images import FOLDER, demo_images

CACHE = FOLDER.parent


def photographs(data: str | None) -> list[Path]:
    """The image files in `data` (a folder or a tar), sorted; the demo's images if it is None."""
    if data is None:
        if not FOLDER.exists():
            print("making the demo's images, once: about a minute", file=sys.stderr)
        folder = demo_images()
    else:
        folder = Path(data) if Path(data).is_dir() else _unpacked(Path(data))
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
    if not found:
        endings = ", ".join(sorted(IMAGE_ENDINGS))
        raise ValueError(f"--data: {data} holds no images, that is no files that end in {endings}.")
    return found


def described(data: str | None, images: list[Path]) -> str:
    """What the images are, for a table's title; no path in it."""
    return f"{len(images):,} images, " + ("the demo's" if data is None else "given with --data")


def _unpacked(archive: Path) -> Path:
    """The folder with the tar's content, unpacked on the first call, complete or not at all."""
    state = archive.stat()
    key = hashlib.sha256(f"{archive} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()
    folder = CACHE / f"unpacked-{key[:16]}"
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    unpacking = Path(tempfile.mkdtemp(prefix="unpacking-", dir=CACHE))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(unpacking, filter="data")
        unpacking.rename(folder)
    except tarfile.ReadError:
        raise ValueError(f"--data: {archive} is neither a folder nor a tar.") from None
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)
    return folder
