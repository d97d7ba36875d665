"""Data behind a URL, from a real S3 server through a faulty proxy: no sample lost, same bytes."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from rekindle.fetch import Folder, writer_for
from rekindle.fetch.remote.files import remote_files
from rekindle.tools.cli import main
from s3_server import SECRET, FaultyProxy, Request, S3Server, s3_behind_proxy, storage_options
from waiting import HANGS, eventually

WAYS: dict[str, dict[str, Any]] = {
    "no workers": {"num_workers": 0},
    "threads": {"num_workers": 2, "executor": "threads"},
    "fork": {"num_workers": 2, "executor": "processes", "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 2, "executor": "processes", "multiprocessing_context": "spawn"},
}


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, S3Server, FaultyProxy]]:
    """A bucket with a folder of images, the server and the proxy."""
    directory = tmp_path_factory.mktemp("s3")
    for name in ("cat", "dog", "emu"):
        (directory / "bucket/train" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(directory / f"bucket/train/{name}/{number}.png")
    (directory / "bucket/large.bin").write_bytes(np.random.default_rng(0).bytes(4 << 20))
    with s3_behind_proxy(directory) as (server, proxy):
        yield directory / "bucket", server, proxy


@pytest.fixture
def s3(there: tuple[Path, S3Server, FaultyProxy], tmp_path: Path) -> Iterator[S3]:
    folder, server, proxy = there
    proxy.requests.clear()
    proxy.faults.clear()
    proxy.slowness = 1.0
    yield S3(folder, server, proxy, tmp_path / "cache")
    proxy.fault = lambda _: ""
    proxy.together = None


class S3:
    """The bucket as a test uses it."""

    def __init__(self, folder: Path, server: S3Server, proxy: FaultyProxy, cache: Path) -> None:
        self.folder, self.server, self.proxy, self.cache = folder, server, proxy, cache

    def options(self, **others: Any) -> rk.RemoteOptions:
        others.setdefault("cache_directory", self.cache)
        return rk.RemoteOptions(storage_options=storage_options(self.proxy), **others)

    def open(self, path: str = "train", **others: Any) -> rk.ImageDataset:
        return rk.open(f"s3://bucket/{path}", decode=False, remote=self.options(**others))

    def expected(self) -> list[tuple[bytes, int]]:
        source = Folder(self.folder / "train")
        return [(source.read(index), source.target(index)) for index in range(len(source))]


def epoch(dataset: Any, **how: Any) -> tuple[list[int], list[tuple[bytes, int]]]:
    """Indices and samples of one epoch, in order."""
    loader = rk.DataLoader(dataset, batch_size=5, shuffle=True, seed=3, collate_fn=list, **how)
    ids, samples = [], []
    for batch in loader:
        ids += loader.batch.ids.tolist()
        samples += batch
    loader.close()
    return ids, samples


def test_a_remote_folder_is_what_its_local_copy_is(s3: S3) -> None:
    local, remote = rk.open(s3.folder / "train"), s3.open()
    assert remote.classes == local.classes
    assert remote.targets == local.targets
    assert [name for name, _ in remote.samples] == [
        f"s3://bucket/train/{Path(name).relative_to(s3.folder / 'train')}" for name, _ in local.samples
    ]
    assert [remote[index] for index in range(len(remote))] == s3.expected()
    assert remote.source.lengths().tolist() == local.source.lengths().tolist()


def test_images_are_decoded_and_written_into_the_batch(s3: S3) -> None:
    transform = [rk.transforms.ToTensor()]
    near = rk.open(s3.folder / "train", transform)
    far = rk.open("s3://bucket/train", transform, remote=s3.options())
    for a, b in zip(
        *(rk.DataLoader(one, batch_size=16, num_workers=2, seed=1) for one in (near, far)), strict=True
    ):
        assert all((x == y).all() for x, y in zip(a, b, strict=True))


def faulty(request: Request) -> str:
    """Every second read of data goes wrong, in turn in each way."""
    if request.range is None or request.number % 2:
        return ""
    return ("slow", "500", "reset", "truncate", "500", "reset", "truncate")[request.number // 2 % 7]


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.slow) if way == "spawn" else way for way in WAYS]
)
@pytest.mark.slow
def test_a_server_that_fails_every_second_time_costs_no_sample(s3: S3, way: str) -> None:
    s3.proxy.fault, s3.proxy.slowness = faulty, 2.0
    data = s3.open(attempt_timeout=1.5, cache_bytes=0)
    ids, samples = epoch(data, **WAYS[way])
    expected = s3.expected()
    assert sorted(ids) == list(range(24))
    assert samples == [expected[index] for index in ids]
    assert {"500", "reset", "truncate", "slow"} <= set(s3.proxy.faults)


@pytest.mark.parametrize("way", ["threads", "fork"])
def test_a_server_that_restarts_in_the_middle_of_an_epoch_costs_no_sample(s3: S3, way: str) -> None:
    data = s3.open(cache_bytes=0)
    loader = rk.DataLoader(data, batch_size=2, shuffle=True, seed=3, collate_fn=list, **WAYS[way])
    samples: list[Any] = []
    ids: list[int] = []
    back = threading.Timer(0.5, s3.server.start)
    for step, batch in enumerate(loader):
        if step == 3:
            s3.server.stop()
            back.start()
        samples += batch
        ids += loader.batch.ids.tolist()
    loader.close()
    back.join()
    expected = s3.expected()
    assert sorted(ids) == list(range(24))
    assert samples == [expected[index] for index in ids]


def read_within(seconds: float, data: Any) -> Any:
    """Data of which a read has so little time; to open it took as long as it takes."""
    object.__setattr__(data.source._store.options, "deadline", seconds)
    return data


def test_an_error_names_the_object_the_offset_and_the_attempts_and_no_secret(s3: S3) -> None:
    data = read_within(1.0, s3.open(cache_bytes=0))
    s3.proxy.fault = lambda request: "500" if request.range else ""
    with pytest.raises(rk.RemoteError) as caught:
        data[7]
    message = str(caught.value)
    assert "'s3://bucket/train/cat/7.png' at byte 0" in message
    assert " attempt" in message
    assert "deadline" in message
    assert SECRET not in message + repr(data) + repr(data.source._store.options)


def test_retries_end_at_the_deadline_even_if_the_server_never_answers(s3: S3) -> None:
    data = read_within(0.8, s3.open(cache_bytes=0))
    s3.proxy.fault = lambda request: "slow" if request.range else ""
    s3.proxy.slowness = 3600.0
    with pytest.raises(rk.RemoteError, match="attempt"):
        data[0]


def test_what_does_not_exist_is_not_retried(s3: S3) -> None:
    with pytest.raises(rk.RemoteError, match=r"bucket/nothing.h5.*1 attempt"):
        remote_files("s3://bucket/nothing.h5", s3.options())
    with pytest.raises(rk.RekindleError, match="nowhere"):
        s3.open("nowhere")


def test_an_object_that_is_gone_is_one_bad_sample(s3: S3) -> None:
    data = s3.open(cache_bytes=0)
    victim = s3.folder / "train/dog/3.png"
    kept = victim.read_bytes()
    victim.unlink()
    try:
        loader = rk.DataLoader(
            data, batch_size=10, num_workers=2, collate_fn=list, on_error="skip", error_budget=0.2
        )
        assert sum(len(batch) for batch in loader) == 23
        assert "dog/3.png" in str(loader.report())
    finally:
        victim.write_bytes(kept)


# The cache on the local disk.


def test_the_second_epoch_asks_the_server_for_nothing(s3: S3) -> None:
    first = epoch(s3.open(), **WAYS["threads"])
    asked = len(s3.proxy.data_requests())
    assert asked > 0
    assert epoch(s3.open(), **WAYS["fork"]) == first
    assert len(s3.proxy.data_requests()) == asked


def test_a_changed_object_is_never_mixed_with_what_was_cached(s3: S3) -> None:
    path = s3.folder / "changing.bin"
    path.write_bytes(b"old" * 1000)
    old = remote_files("s3://bucket/changing.bin", s3.options())[0]
    assert old.read(0, 3) == b"old"
    time.sleep(1.1)  # The server reports times in seconds.
    path.write_bytes(b"new" * 1000)
    new = remote_files("s3://bucket/changing.bin", s3.options())[0]
    assert new.version != old.version
    assert new.read(0, 3) == b"new"
    assert old.read(0, 3) == b"old", "what was read before is cached under its version"
    with pytest.raises(rk.RemoteError, match=r"changing\.bin' at byte 3 .* changed since it was opened"):
        old.read(3, 3)


def test_near_ranges_become_one_request_and_far_ones_are_in_flight_at_once(s3: S3) -> None:
    content = (s3.folder / "large.bin").read_bytes()
    file = remote_files("s3://bucket/large.bin", s3.options(cache_bytes=0))[0]
    near = [(offset, 700) for offset in range(0, 50_000, 1000)]
    file.prefetch(near)
    assert [file.read(*one) for one in near] == [content[a : a + n] for a, n in near]
    assert len(s3.proxy.data_requests()) == 1
    far = [(offset, 100) for offset in range(0, 4 << 20, 512 << 10)]
    s3.proxy.together = threading.Barrier(len(far), timeout=HANGS)  # None is answered before all have come.
    s3.proxy.fault = lambda request: "together" if request.range else ""
    file.prefetch(far)
    assert [file.read(*one) for one in far] == [content[a : a + n] for a, n in far]
    assert len(s3.proxy.data_requests()) == 1 + len(far)


def test_the_coming_batch_is_fetched_while_the_loop_is_at_work(s3: S3) -> None:
    data = s3.open(cache_bytes=0)
    batches = iter(rk.DataLoader(data, batch_size=8, collate_fn=list))
    next(batches)
    eventually(lambda: len(s3.proxy.data_requests()) == 16)  # No worker, and nobody asks for a batch.


def test_a_range_outside_of_the_object_is_refused_without_a_request(s3: S3) -> None:
    file = remote_files("s3://bucket/large.bin", s3.options())[0]
    for offset, length in ((-1, 4), (4 << 20, 1), (0, (4 << 20) + 1), (5, -2)):
        with pytest.raises(rk.FormatError, match=r"large\.bin"):
            file.read(offset, length)
    assert file.read(4 << 20, 0) == b""
    assert not s3.proxy.data_requests()


# Other servers.


def test_labels_come_from_a_file_in_the_remote_folder(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("a.png", "b.png"):
        memory.pipe(f"/labelled/{name}", name.encode())
    memory.pipe("/labelled/labels.csv", b"file,label\nb.png,1\na.png,4\n")
    data = rk.open(
        "memory://labelled", decode=False, remote=rk.RemoteOptions(cache_directory=tmp_path / "cache")
    )
    assert [data[0], data[1]] == [(b"a.png", 4), (b"b.png", 1)]


def test_a_remote_folder_without_labels_is_packed_like_a_local_one(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, shade in (("a.png", 10), ("b.png", 200)):
        Image.new("RGB", (4, 4), (shade, shade, shade)).save(tmp_path / name)
        memory.pipe(f"/plain/{name}", (tmp_path / name).read_bytes())
    assert main(["pack", "memory://plain", str(tmp_path / "plain.tar"), "--quiet"]) == 0
    packed = rk.open(tmp_path / "plain.tar")
    assert [int(packed[number][0][0, 0, 0]) for number in range(2)] == [10, 200]
    assert packed.targets == [-1, -1]
    with pytest.raises(rk.DataError, match="no class folders and no labels, but 2 images"):
        rk.open("memory://plain")


def test_a_server_without_range_requests_will_do(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(range(200)))
    writer = writer_for(tmp_path / "x.tar")
    writer.add("one", np.zeros((4, 4, 3), np.uint8), 3)
    writer.close()
    handler = functools.partial(_Quiet, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/x.bin"
        file = remote_files(url, rk.RemoteOptions(cache_directory=tmp_path / "cache"))[0]
        assert (file.name, file.size) == (url, 200)
        assert file.read(100, 3) == bytes([100, 101, 102])
        packed = rk.open(
            url.replace("x.bin", "x.tar"), remote=rk.RemoteOptions(cache_directory=tmp_path / "cache")
        )
        assert (packed[0][0].shape, packed[0][1]) == ((4, 4, 3), 3)
        with pytest.raises(rk.RemoteError, match=r"missing\.tar"):
            rk.open(url.replace("x.bin", "missing.tar"))
    finally:
        server.shutdown()
        server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


def test_a_missing_package_is_named() -> None:
    with pytest.raises(rk.ArgumentError, match="no-such-protocol"):
        rk.open("no-such-protocol://bucket/x")


class _Unloadable(fsspec.AbstractFileSystem):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        raise OSError("Unable to load libjvm")


def test_a_file_system_whose_library_does_not_load_is_named_with_the_url() -> None:
    fsspec.register_implementation("unloadable", _Unloadable, clobber=True)
    with pytest.raises(rk.RemoteError, match=r"cannot open 'unloadable://bucket/x': Unable to load libjvm"):
        rk.open("unloadable://bucket/x")


@pytest.mark.parametrize("wrong", [{"deadline": 0}, {"parallel": 0}, {"cache_bytes": -1}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(rk.ArgumentError, match=next(iter(wrong))):
        rk.RemoteOptions(**wrong)
