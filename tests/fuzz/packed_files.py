"""tar, TFRecord and LMDB: every sample that is found can be read, or the file is refused."""

import struct
from contextlib import suppress

import numpy as np

from hostile.packed_mutations import BLOCK, feature, message, record, with_field
from hostile_packs import InMemory, small_tar
from rekindle.errors import RekindleError
from rekindle.fetch.packed.lmdb.index import MAGIC, index_lmdb
from rekindle.fetch.packed.record_index import Indexer, IndexSettings
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.tar.index import index_tar
from rekindle.fetch.packed.tfrecord.index import index_tfrecord

_MOST_SAMPLES = 100  # that are read of one file
_EXAMPLE = [(1, 2, [feature(b"image/encoded", 1, b"\xff\xd8image"), feature(b"image/class/label", 3, 4)])]
_DATUM = [(1, 0, 3), (2, 0, 2), (3, 0, 1), (4, 2, b"pixels"), (5, 0, 7)]
_PAGE = 512


def read_all(source: Packed) -> None:
    """Use a dataset in every way there is."""
    for number in range(min(len(source), _MOST_SAMPLES)):
        with suppress(RekindleError):
            assert _content(source.read(number)) == _content(source.copy(number))
        source.path(number)
        source.target(number)
    assert len(source.lengths()) == len(source.targets) == len(source)
    source.version()
    with suppress(RekindleError):
        assert len(source.class_to_idx) <= len(source.classes)


def _content(sample: object) -> bytes:
    # `bytes` of an array without dimensions is as many zeros as the number in it.
    return sample.tobytes() if isinstance(sample, np.ndarray) else bytes(sample)


def _check(data: bytes, indexer: Indexer, settings: IndexSettings | None = None) -> None:
    with suppress(RekindleError):
        read_all(Packed("packed", [InMemory(data)], indexer, settings, keep_index=False))


def check_tar(data: bytes) -> None:
    _check(data, index_tar)
    _check(_with_tar_checksums(data), index_tar)


def tars() -> list[bytes]:
    named = small_tar()
    return [named, named[3 * BLOCK :], named[: 2 * BLOCK] + bytes(1024)]


def _with_tar_checksums(data: bytes) -> bytes:
    out, at = bytearray(data), 0
    while at + BLOCK <= len(data) and any(data[at : at + BLOCK]):
        out[at : at + BLOCK] = with_field(data[at : at + BLOCK], 0, b"")
        size = data[at + 124 : at + 136].strip(b"\0 ")
        at += BLOCK + (
            -(-int(size, 8) // BLOCK) * BLOCK if size.isdigit() and not set(size) & set(b"89") else 0
        )
    return bytes(out)


def check_tfrecord(data: bytes) -> None:
    _check(data, index_tfrecord)
    _check(data, index_tfrecord, {"verify": False})


def tfrecords() -> list[bytes]:
    return [record(message(_EXAMPLE)), record(message(_EXAMPLE)) * 2, record(b"")]


def check_protobuf(data: bytes) -> None:
    _check(record(message(_EXAMPLE)) + record(data), index_tfrecord)
    _check(record(data), index_tfrecord, {"verify": False})
    if len(data) < _PAGE - 100:
        _check(lmdb_file([(b"a", data)]), index_lmdb)


def messages() -> list[bytes]:
    packed = [
        (
            1,
            2,
            [
                feature(b"image", 1, b"\xff\xd8image"),
                (1, 2, [(1, 2, b"label"), (2, 2, [(3, 2, [(1, 2, b"\7\1")])])]),
            ],
        )
    ]
    return [
        message(_EXAMPLE),
        message(packed),
        message(_DATUM),
        message([(7, 0, 1), (4, 2, b"\xff\xd8image")]),
    ]


def check_lmdb(data: bytes) -> None:
    _check(data, index_lmdb)
    _check(data, index_lmdb, {"images": "a"})


def lmdbs() -> list[bytes]:
    image = b"\xff\xd8image"
    return [
        lmdb_file([(b"a", image)]),
        lmdb_file(
            [(b"__classes__", b'["x", "y"]'), (b"a", image), (b"b", image * 2), (b"c", message(_DATUM))]
        ),
        lmdb_file([(b"a", image), (b"b", image)], branch=True),
        lmdb_file([(b"a", image)], large=image * 100),
        lmdb_file([(b"a", _database(1, 3)), (b"b", image)], kind=2),
    ]


def _database(count: int, root: int) -> bytes:
    return struct.pack("<IHHQQQQQ", _PAGE, 0, 1, 0, 1, 0, count, root)


def _page(number: int, kind: int, nodes: list[bytes]) -> bytes:
    """A page of the tree: the places of its nodes, and the nodes at its end."""
    places, body = [], b""
    for node in nodes:
        body = node + bytes(len(node) % 2) + body
        places.append(_PAGE - len(body))
    lower = 16 + 2 * len(places)
    head = struct.pack(f"<QHHHH{len(places)}H", number, 0, kind, lower, _PAGE - len(body), *places)
    return head + bytes(_PAGE - len(head) - len(body)) + body


def _leaf(key: bytes, value: bytes, flags: int = 0, length: int | None = None) -> bytes:
    size = len(value) if length is None else length
    return struct.pack("<HHHH", size & 0xFFFF, size >> 16, flags, len(key)) + key + value


def lmdb_file(
    entries: list[tuple[bytes, bytes]], *, branch: bool = False, large: bytes = b"", kind: int = 0
) -> bytes:
    """A file of pages of 512 bytes; `branch`: of two leaves, `large`: a value on pages of its own."""
    nodes = [_leaf(key, value, kind) for key, value in entries]
    count, root, pages = len(nodes), 2, []
    if branch:
        children = [struct.pack("<HHHH", page, 0, 0, 1) + b"ab"[page - 3 : page - 2] for page in (3, 4)]
        pages = [_page(2, 1, children), _page(3, 2, nodes[:1]), _page(4, 2, nodes[1:])]
    elif large:
        count += 1
        pages = [_page(2, 2, [*nodes, _leaf(b"z", struct.pack("<Q", 3), 1, len(large))])]
        own = -(-(16 + len(large)) // _PAGE)
        pages.append((struct.pack("<QHHI", 3, 0, 4, own) + large).ljust(own * _PAGE, b"\0"))
    else:
        pages = [_page(2, 2, nodes)]
        if kind:
            pages.append(_page(3, 2, [_leaf(b"a", b"\xff\xd8image")]))
    metas = [
        (
            struct.pack("<QHHI", number, 0, 8, 0)
            + struct.pack("<IIQQ", MAGIC, 1, 0, 1 << 20)
            + _database(0, 2**64 - 1)
            + _database(count, root)
            + struct.pack("<QQ", 9, number)
        ).ljust(_PAGE, b"\0")
        for number in (0, 1)
    ]
    return b"".join(metas + pages)
