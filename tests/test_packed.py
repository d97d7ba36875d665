"""Packed files are datasets like any other: the same samples, the same batches, found by an index."""

import gc
import gzip
import os
import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import CLASSES, ENDINGS, jpegs, pack
from photographs import photographs
from rekindle.core.directory import MARKER
from rekindle.errors import FormatError
from rekindle.fetch import open_source, writer_for
from rekindle.fetch.byte_files import LocalFile
from rekindle.fetch.shards import expand
from same import same

T = rk.transforms
STEPS = [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,), (0.25,))]
SAMPLES = 11

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    for number, data in enumerate(jpegs(SAMPLES)):
        (root / f"{number:04}.jpg").write_bytes(data)
    names = [f"{number:04}.jpg,{number % len(CLASSES)}" for number in range(SAMPLES)]
    (root / "labels.csv").write_text("\n".join(names))
    return root


@pytest.fixture(params=ENDINGS)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return pack(tmp_path / f"train.{request.param}", jpegs(SAMPLES), CLASSES)


def test_samples_are_what_was_packed(packed: Path) -> None:
    data = rk.open(packed, decode=False)
    assert [sample for sample, _ in data] == jpegs(SAMPLES)
    assert data.targets == [number % 3 for number in range(SAMPLES)]
    assert data.classes == CLASSES
    assert data.class_to_idx == {"cat": 0, "dog": 1, "owl": 2}
    assert str(packed) in data.samples[4][0]
    assert data.source.lengths().tolist() == [len(sample) for sample in jpegs(SAMPLES)]
    with pytest.raises(IndexError):
        data[SAMPLES]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_workers": 2, "executor": "threads"},
        {"num_workers": 2, "executor": "processes"},
    ],
    ids=["inline", "threads", "processes"],
)
def test_batches_are_those_of_the_folder(packed: Path, folder: Path, settings: dict[str, Any]) -> None:
    assert same(_batches(packed, **settings), _batches(folder))


def test_spawned_processes_find_the_files_again(folder: Path, tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", jpegs(SAMPLES), CLASSES)
    spawned = {"num_workers": 1, "executor": "processes", "multiprocessing_context": "spawn"}
    assert same(_batches(path, **spawned), _batches(folder))


def _batches(path: Path, **settings: Any) -> list[Any]:
    loader = rk.DataLoader(rk.open(path, transform=STEPS), batch_size=4, shuffle=True, seed=5, **settings)
    return [[part.clone() for part in batch] for batch in loader]


def test_a_broken_image_in_a_packed_file_is_named(tmp_path: Path) -> None:
    for ending in ENDINGS:
        images = jpegs(3)
        path = pack(tmp_path / f"a.{ending}", [images[0], images[1][:700], images[2]])
        with pytest.raises(rk.DecodeError, match=rf"a\.{ending}.*\(sample 1\)"):
            rk.open(path, transform=STEPS)[1]


@pytest.mark.parametrize("ending", ENDINGS)
def test_raw_pixels_among_jpegs_are_the_same_image_without_decoding(tmp_path: Path, ending: str) -> None:
    pixels = [np.ascontiguousarray(photographs()[number][:80, :100]) for number in range(4)]
    path = pack(tmp_path / f"half.{ending}", [pixels[0], jpegs(2)[1], pixels[2], pixels[3]])
    plain = rk.open(path)
    for number in (0, 2, 3):
        np.testing.assert_array_equal(plain[number][0], pixels[number])
    steps = rk.open(path, transform=STEPS)
    arrays = rk.ArrayImages(np.stack(pixels), [0, 1, 2, 0], transform=STEPS)
    numbers = np.random.default_rng(0).random((20, steps.uniforms))
    for row in numbers:
        for number in (0, 2, 3):
            assert same(steps.sample(number, row), arrays.sample(number, row))
    for other in ([T.ColorJitter(0.3), T.ToTensor()], [T.ToTensor()], [T.RandomCrop(90, padding=9)]):
        ours, theirs = rk.open(path, transform=other), rk.ArrayImages(np.stack(pixels), [0, 1, 2, 0], other)
        row = np.random.default_rng(1).random(ours.uniforms)
        assert same(ours.sample(2, row)[0], theirs.sample(2, row)[0])


@pytest.mark.parametrize("ending", ENDINGS)
def test_reuse_of_packed_samples_changes_no_byte(tmp_path: Path, folder: Path, ending: str) -> None:
    path = pack(tmp_path / f"a.{ending}", jpegs(SAMPLES), CLASSES)

    def epochs(source: Path, split: Any, workers: int) -> list[Any]:
        data = rk.open(source, transform=STEPS)
        reuse = rk.Refurbish(factor=2, split=split)
        loader = rk.DataLoader(data, batch_size=4, shuffle=True, num_workers=workers, seed=1, reuse=reuse)
        return [[part.clone() for part in batch] for _ in range(3) for batch in loader]

    for split in (0, 1):
        assert same(epochs(path, split, workers=2 - split), epochs(folder, split, workers=0))


def test_foreign_transforms_see_raw_pixels_as_pillow_images(tmp_path: Path) -> None:
    pixels = np.ascontiguousarray(photographs()[0][:20, :30])
    path = pack(tmp_path / "raw.tar", [pixels])
    image, _ = rk.open(path, transform=lambda image: image.rotate(180))[0]
    np.testing.assert_array_equal(np.asarray(image), pixels[::-1, ::-1])


@pytest.mark.parametrize("ending", ENDINGS)
def test_uneven_shards_are_one_dataset(tmp_path: Path, ending: str) -> None:
    images = jpegs(7)
    for number, part in enumerate((images[:1], images[1:6], images[6:])):
        pack(tmp_path / f"s-{number:03}.{ending}", part)
    for pattern in (f"s-{{000..002}}.{ending}", f"s-*.{ending}", f"s-{{000,001,002}}.{ending}"):
        source = open_source(tmp_path / pattern)
        assert [bytes(source.read(number)) for number in range(7)] == images
        assert source.targets == [0, 0, 1, 2, 0, 1, 0]


def test_patterns_stand_for_files_in_order() -> None:
    assert expand("a{9..11}b") == ["a9b", "a10b", "a11b"]
    assert expand("{x,y}-{08..10}") == ["x-08", "x-09", "x-10", "y-08", "y-09", "y-10"]
    with pytest.raises(rk.ArgumentError, match="more than"):
        expand("{0..99999999}")
    with pytest.raises(rk.DataError, match="no file matches"):
        expand("nowhere-*.tar")


@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_gzipped_files_are_unpacked_once(tmp_path: Path, cache: Path, ending: str) -> None:
    path = pack(tmp_path / f"a.{ending}", jpegs(3), CLASSES)
    zipped = tmp_path / f"a.{ending}.gz"
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    for _ in range(2):
        source = open_source(zipped)
        assert [bytes(source.read(number)) for number in range(3)] == jpegs(3)
    unpacked = (cache / "rekindle" / "unzipped").iterdir()
    assert len([one for one in unpacked if one.suffix != ".rkindex" and one.name != MARKER]) == 1
    zipped.write_bytes(zipped.read_bytes()[:-9])
    with pytest.raises(FormatError, match="gzip data is truncated"):
        open_source(zipped)


@pytest.mark.parametrize("length", [0x8B1F, 0x38B1F])
def test_a_record_whose_length_looks_like_gzip_is_read(tmp_path: Path, length: int) -> None:
    """A TFRecord begins with the length of its first message."""
    path, image = tmp_path / "a.tfrecord", b"\xff\xd8" + bytes(length - 300)
    for _ in range(2):  # What is around the image takes a few bytes.
        pack(path, [image])
        image += bytes(length - int.from_bytes(path.read_bytes()[:8], "little"))
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert bytes(open_source(path).read(0)) == image


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.fetch.packed.gzip_cache._ALWAYS_ALLOWED", 1 << 20)
    path = tmp_path / "bomb.tfrecord.gz"
    path.write_bytes(gzip.compress(bytes(16 << 20)))
    with pytest.raises(FormatError, match="unpacks to more than"):
        open_source(path)


@pytest.mark.parametrize("ending", ["h5", "tfrecord", "tar"])
def test_labels_can_be_given_by_key(tmp_path: Path, ending: str) -> None:
    path = pack(tmp_path / f"a.{ending}", jpegs(3))
    labels = {"photos/0000": "b", "photos/0001": "a", "photos/0002": "b"}
    source = rk.open(path, labels=labels)
    assert (source.targets, source.classes) == ([1, 0, 1], ["a", "b"])
    assert pickle.loads(pickle.dumps(source)).targets == [1, 0, 1]
    with pytest.raises(rk.DataError, match="1 of 3 samples have no label"):
        rk.open(path, labels={"photos/0000": 1, "photos/0001": 2})


def test_threads_and_forks_read_the_same_file(packed: Path) -> None:
    source = open_source(packed)
    wrong: list[int] = []

    def read() -> None:
        for turn in range(200):
            number = turn * 7 % SAMPLES
            if not bytes(source.read(number)) == jpegs_once[number] == source.copy(number):
                wrong.append(number)

    jpegs_once = jpegs(SAMPLES)
    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        read()
        os._exit(len(wrong))
    assert os.waitpid(child, 0)[1] == 0
    assert not wrong


def test_a_truncated_file_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", jpegs(3))
    source = open_source(path)
    bytes(source.read(2))
    os.truncate(path, 600)
    for read in (source.read, source.copy):
        with pytest.raises(FormatError, match="been truncated"):
            read(2)


def test_copies_are_read_by_the_system_and_close_their_files(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To copy a view of mapped memory would hold the GIL, also while the disk is waited for."""
    gc.collect()  # What earlier tests left is none of what is counted.
    before = len(os.listdir("/proc/self/fd"))
    dataset = rk.open(packed, decode=False)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFile, "read", lambda *_: pytest.fail("a view was asked for"))
        assert [dataset[number][0] for number in range(SAMPLES)] == jpegs(SAMPLES)
    again = pickle.loads(pickle.dumps(dataset))
    assert again[1] == dataset[1]
    del dataset, again
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before  # Earlier tests' processes may have ended meanwhile.


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_writer_leaves_all_or_nothing(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    writer = writer_for(path)
    writer.add("a", jpegs(1)[0], 0)
    assert not path.exists()
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    pack(path, jpegs(2))
    pack(path, jpegs(3))
    assert len(open_source(path)) == 3
    assert [one.name for one in tmp_path.iterdir() if not one.name.endswith(".rkindex")] == [path.name]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: rk.open(path / "none.h5"), "there is no"),
        (lambda path: rk.open(path / "a.tar", features={"image": "x"}), "not an option of tar files"),
        (lambda path: rk.open(path / "a.tar", format="zip"), "unknown format 'zip'"),
        (lambda path: rk.open(path, images="x"), "options of packed files"),
        (lambda path: rk.open(path / "{a.tar,b.tfrecord}"), "Open files of one format"),
        (lambda path: rk.open(path / "text.tar"), "neither HDF5, TFRecord, tar nor LMDB"),
        (lambda path: writer_for(path / "a.zip"), "cannot tell the format"),
        (lambda path: rk.open(path / "a.tar", images="tiff"), "no member's name ends in tiff"),
        (lambda path: rk.open(path / "b.tfrecord", features={"image": "x"}), "'image/encoded' \\(bytes\\)"),
        (lambda path: rk.open(path / "b.tfrecord", features={"pixels": "x"}), "features= has unknown keys"),
    ],
)
def test_invalid_options_are_errors_at_once(tmp_path: Path, call: Any, message: str) -> None:
    pack(tmp_path / "a.tar", jpegs(2))
    pack(tmp_path / "b.tfrecord", jpegs(2))
    (tmp_path / "text.tar").write_text("no tar")
    with pytest.raises(rk.RekindleError, match=message):
        call(tmp_path)


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    paths = {ending: pack(tmp_path / f"a.{ending}", jpegs(2)) for ending in ENDINGS}
    for ending, module in (("h5", "h5py"), ("tfrecord", "google_crc32c"), ("lmdb", "lmdb")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(rk.ArgumentError, match=r"rekindle\[(hdf5|tfrecord|lmdb)\]"):
            writer_for(tmp_path / f"b.{ending}")
    with pytest.raises(rk.ArgumentError, match=r"rekindle\[tfrecord\].*verify=False"):
        rk.open(paths["tfrecord"])
    assert len(rk.open(paths["tfrecord"], verify=False)) == 2
    assert len(rk.open(paths["lmdb"])) == 2
    assert len(rk.open(paths["tar"])) == 2
    shutil.rmtree(paths["lmdb"])


def test_batches_as_bytes(packed: Path) -> None:
    loader = rk.DataLoader(
        rk.open(packed, decode=False), batch_size=4, shuffle=False, num_workers=2, collate_fn=list
    )
    assert [sample for batch in loader for sample, _ in batch] == jpegs(SAMPLES)
    assert isinstance(next(iter(loader))[0][1], int)
    assert torch.utils.data.get_worker_info() is None
