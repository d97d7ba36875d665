"""What tests of a shared machine need: a home, a folder that everybody can write to, and a cache folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from rekindle.core import user_cache


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty, about which nobody has been warned yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(user_cache, "_warned", set())
    return folder


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody can write to, as /tmp."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of the user's, with files that must not change."""
    folder = tmp_path / "home"
    (folder / "thesis").mkdir(parents=True)
    for name in ("thesis/thesis.tex", "notes", "plan.json", "train.tar"):
        (folder / name).write_text(f"precious {name}")
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Six images of two classes."""
    for number in range(6):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (number, 0, 0)).save(path)
    return tmp_path / "images"
