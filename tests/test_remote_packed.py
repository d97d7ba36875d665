"""Packed files behind a URL: the samples of the local files, however the server behaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from rekindle.fetch import writer_for
from rekindle.fetch.remote.header_reader import HeaderReader
from rekindle.fetch.remote.object_store import RemoteObject
from s3_server import FaultyProxy, Request, S3Server, s3_behind_proxy, storage_options

FORMATS = ("h5", "tfrecord", "tar", "lmdb")
# HDF5's index is its library's, the others' are ours: of these one stands for all in the quick tests.
ONE_OF_EACH_KIND = [
    "h5",
    "tar",
    pytest.param("tfrecord", marks=pytest.mark.slow),
    pytest.param("lmdb", marks=pytest.mark.slow),
]
SAMPLES = 16

pytestmark = pytest.mark.usefixtures("cache")


def _write(path: Path, start: int, stop: int) -> None:
    writer = writer_for(path, ["cat", "dog"])
    for number in range(start, stop):
        size = (30 + number % 5, 40, 3)
        pixels = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
        writer.add(f"sample{number:03}", pixels, number % 2)
    writer.close()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, S3Server, FaultyProxy]]:
    directory = tmp_path_factory.mktemp("s3")
    (directory / "bucket").mkdir()
    for ending in FORMATS:
        _write(directory / f"bucket/train.{ending}", 0, SAMPLES)
    for shard in range(3):
        _write(directory / f"bucket/shards-{shard:03}.tar", 4 * shard, 4 * shard + 4)
    with s3_behind_proxy(directory) as (server, proxy):
        yield directory / "bucket", server, proxy


@pytest.fixture
def bucket(there: tuple[Path, S3Server, FaultyProxy]) -> Iterator[Bucket]:
    folder, _, proxy = there
    proxy.requests.clear()
    yield Bucket(folder, proxy)
    proxy.fault = lambda _: ""


class Bucket:
    """The bucket as a test uses it."""

    def __init__(self, folder: Path, proxy: FaultyProxy) -> None:
        self.folder, self.proxy = folder, proxy

    def open(self, name: str, **options: Any) -> rk.ImageDataset:
        remote = rk.RemoteOptions(storage_options=storage_options(self.proxy), **options)
        return rk.open(f"s3://bucket/{name}", decode=False, remote=remote)

    def expected(self, name: str) -> list[tuple[bytes, int]]:
        return samples(rk.open(self.folder / name, decode=False))


def samples(data: rk.ImageDataset) -> list[tuple[bytes, int]]:
    return [(bytes(stored), label) for stored, label in (data[index] for index in range(len(data)))]


@pytest.mark.parametrize("ending", FORMATS)
def test_a_remote_packed_file_has_the_samples_of_the_local_one(bucket: Bucket, ending: str) -> None:
    data = bucket.open(f"train.{ending}")
    assert data.classes == ["cat", "dog"]
    assert samples(data) == bucket.expected(f"train.{ending}")
    assert data.source.path(3).startswith("s3://bucket/train.")


@pytest.mark.parametrize("pattern", ["shards-{000..002}.tar", "shards-*.tar"])
def test_shards_come_by_braces_and_wildcards(bucket: Bucket, pattern: str) -> None:
    assert samples(bucket.open(pattern)) == bucket.expected("shards-*.tar")


def faulty(request: Request) -> str:
    """Every second read of data goes wrong, in turn in each way."""
    if request.range is None or request.number % 2:
        return ""
    return ("500", "reset", "truncate")[request.number // 2 % 3]


@pytest.mark.parametrize("ending", ONE_OF_EACH_KIND)
def test_faults_cost_no_sample_in_indexing_nor_in_reading(bucket: Bucket, ending: str) -> None:
    bucket.proxy.fault = faulty
    data = bucket.open(f"train.{ending}", cache_bytes=0)
    loader = rk.DataLoader(data, batch_size=4, shuffle=True, seed=1, num_workers=2, collate_fn=list)
    found = [(int(i), bytes(stored), label) for batch in loader for i, (stored, label) in _ids(loader, batch)]
    loader.close()
    expected = bucket.expected(f"train.{ending}")
    assert [(stored, label) for _, stored, label in sorted(found)] == expected


def _ids(loader: Any, batch: list[Any]) -> Any:
    return zip(loader.batch.ids, batch, strict=True)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_read_for_themselves(bucket: Bucket, context: str) -> None:
    data = bucket.open("train.tar")
    loader = rk.DataLoader(
        data,
        batch_size=4,
        num_workers=2,
        executor="processes",
        multiprocessing_context=context,
        collate_fn=list,
    )
    assert [(bytes(a), b) for batch in loader for a, b in batch] == bucket.expected("train.tar")


@pytest.mark.parametrize("ending", ONE_OF_EACH_KIND)
def test_a_second_opening_and_epoch_read_nothing(bucket: Bucket, ending: str) -> None:
    first = samples(bucket.open(f"train.{ending}"))
    bucket.proxy.requests.clear()
    assert samples(bucket.open(f"train.{ending}")) == first
    assert not bucket.proxy.data_requests(), "all of it is on the local disk"


def test_a_batch_is_fetched_with_few_requests(bucket: Bucket) -> None:
    data = bucket.open("train.tar")
    bucket.proxy.requests.clear()
    for _ in rk.DataLoader(data, batch_size=SAMPLES, collate_fn=list):
        pass
    assert len(bucket.proxy.data_requests()) <= 2


class _Counted:
    """What a `HeaderReader` fetches from: an object in memory that counts."""

    def __init__(self, content: bytes) -> None:
        self.content, self.fetched = content, [(0, 0)]

    def fetch(self, _: RemoteObject, offset: int, length: int) -> bytes:
        self.fetched.append((offset, length))
        return self.content[offset : offset + length]


@pytest.mark.parametrize(("distance", "most_requests", "most_share"), [(2000, 16, 1.1), (1 << 21, 40, 0.05)])
def test_headers_close_together_are_read_in_order_and_far_ones_alone(
    distance: int, most_requests: int, most_share: float
) -> None:
    content = np.random.default_rng(0).bytes(64 << 20)
    store: Any = _Counted(content)
    file = HeaderReader(store, RemoteObject("x", len(content), "0" * 16), "memory://x")
    for offset in range(0, len(content) - 512, distance):
        assert file.read(offset, 512) == content[offset : offset + 512]
    assert len(store.fetched) <= most_requests
    assert sum(length for _, length in store.fetched) <= most_share * len(content)
    with pytest.raises(rk.FormatError, match="memory://x"):
        file.read(len(content) - 4, 5)


def test_what_is_missing_is_named(bucket: Bucket) -> None:
    with pytest.raises(rk.RemoteError, match=r"bucket/missing\.h5"):
        bucket.open("missing.h5")
    with pytest.raises(rk.DataError, match="no object matches"):
        bucket.open("missing-*.tar")


def test_a_subset_is_fetched_ahead_as_well(bucket: Bucket) -> None:
    data = rk.open(
        "s3://bucket/train.tar",
        [rk.transforms.CenterCrop(16), rk.transforms.ToTensor()],
        remote=rk.RemoteOptions(storage_options=storage_options(bucket.proxy)),
    )
    bucket.proxy.requests.clear()
    subset = torch.utils.data.Subset(data, range(2, 12))
    assert sum(len(labels) for _, labels in rk.DataLoader(subset, batch_size=10, num_workers=0)) == 10
    assert len(bucket.proxy.data_requests()) <= 2
