"""The index of a packed file is kept beside it, used, checked and built again where it must be."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import CLASSES, ENDINGS, jpegs, pack
from rekindle.errors import FormatError
from rekindle.fetch import open_source
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.packed import index_file

SAMPLES = 11

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(params=ENDINGS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return pack(tmp_path / f"train.{request.param}", jpegs(SAMPLES), CLASSES)


def test_the_index_is_kept_beside_the_file_and_used(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_source(packed)
    (kept,) = packed.parent.rglob("*.rkindex")
    monkeypatch.setattr(index_file, "write_index", None)
    monkeypatch.setattr("rekindle.fetch.packed.source.write_index", _never)
    again = open_source(packed)
    assert again.samples == first.samples
    assert bytes(again.read(3)) == jpegs(4)[3]
    assert kept.exists()


def _never(*_: Any) -> bool:
    raise AssertionError("the index was built again")


def test_a_file_that_changed_is_indexed_again(packed: Path, tmp_path: Path) -> None:
    open_source(packed)
    other = pack(tmp_path / f"other{packed.suffix}", jpegs(SAMPLES)[::-1])
    if packed.is_dir():
        os.replace(other / "data.mdb", packed / "data.mdb")
    else:
        os.replace(other, packed)
    assert bytes(open_source(packed).read(0)) == jpegs(SAMPLES)[-1]


def test_an_index_with_any_byte_corrupt_or_missing_is_built_again(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", [b"\xff\xd8" + bytes([number]) * 9 for number in range(4)], CLASSES)
    before = open_source(path)
    expected = before.samples, [bytes(before.read(n)) for n in range(4)], before.classes
    (kept,) = tmp_path.rglob("*.rkindex")
    whole = kept.read_bytes()
    text = whole.index(b"}", 24) + 1
    for place in [*range(0, text, 17), *range(4096, len(whole), 3)]:
        for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]):
            kept.write_bytes(damaged)
            source = open_source(path)
            assert (source.samples, [bytes(source.read(n)) for n in range(4)], source.classes) == expected
            assert kept.read_bytes() == whole


def test_a_large_index_is_checked_where_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "_CHECKED_WHEN_OPENED", 0)
    path = pack(tmp_path / "a.tar", [b"\xff\xd8" + bytes([number]) * 9 for number in range(4)])
    open_source(path)
    (kept,) = tmp_path.rglob("*.rkindex")
    whole = bytearray(kept.read_bytes())
    whole[4096 + 32] ^= 1
    kept.write_bytes(whole)
    source = open_source(path)
    with pytest.raises(FormatError, match="the index is corrupt"):
        source.read(1)


def test_where_no_file_can_be_put_beside_it_the_index_is_in_the_cache(packed: Path, cache: Path) -> None:
    beside = packed / "data.mdb.rkindex" if packed.is_dir() else packed.with_name(packed.name + ".rkindex")
    beside.mkdir()  # Nothing can take its place, not even for root.
    first = open_source(packed)
    (kept,) = cache.rglob("*.rkindex")
    before = kept.stat().st_mtime_ns
    assert open_source(packed).samples == first.samples
    assert kept.stat().st_mtime_ns == before


def test_where_no_index_can_be_kept_samples_are_still_read(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rekindle.fetch.packed.source.write_index", lambda *_: False)
    source = pickle.loads(pickle.dumps(open_source(packed)))
    assert [bytes(source.read(number)) for number in range(SAMPLES)] == jpegs(SAMPLES)
    assert not list(packed.parent.rglob("*.rkindex"))


def test_an_index_of_millions_of_samples_is_not_read_to_open_it(tmp_path: Path) -> None:
    from rekindle.fetch.packed.record_index import RecordIndex, make_rows

    data = tmp_path / "large.tar"
    with data.open("wb") as file:
        file.truncate(1 << 40)
    count = 2_000_000
    rows = make_rows(np.arange(count, dtype=np.int64) * 1000, 1000, np.arange(count) % 1000)
    files = [LocalFile(data)]
    (place, *_) = index_file.index_paths(files, {})
    assert index_file.write_index(place, RecordIndex("tar", rows, classes=CLASSES), files)
    read_before = bytes_read()
    kept = index_file.read_index(place, files)
    assert kept is not None
    assert len(kept.index) == count
    assert not any(kept.checked)
    # Neither read nor touched where it is mapped, but for a hundredth.
    nbytes = place.path.stat().st_size
    assert nbytes > 10 * count
    assert bytes_read() - read_before < nbytes / 100
    assert 0 <= resident_bytes(place.path) < nbytes / 100


def bytes_read() -> int:
    """How much this process has read of files, all told."""
    return int(Path("/proc/self/io").read_text().split()[1])


def resident_bytes(path: Any) -> int:
    """How much of a mapped file is in this process's memory."""
    found, mapped = [], False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            mapped = rest[-1:] == [str(path)]
        elif mapped and name == "Rss:":
            found.append(1024 * int(rest[0]))
    assert found, f"{path} is not mapped"
    return sum(found)
