"""What tests of hostile files and of a shared machine need: small packed files, a home, a shared folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from hostile_packs import Guarded, small_files
from rekindle.fetch.packed.hdf5 import inspector


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The content of small packed files, by kind."""
    return small_files(tmp_path_factory.mktemp("small"))


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    """Reads HDF5 files that may kill the process which looks into them, or keep it busy for ever."""
    monkeypatch.setattr(inspector, "CPU_SECONDS", 0.2)  # seconds: a hundred times what small files take
    made = Guarded(tmp_path)
    yield made
    made.inspector.close()


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
