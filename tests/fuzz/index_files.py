"""Index files whose checksums are right: what is used of them is within the packed file, or they are refused.

An input is the description, a line of JSON, and the arrays.
"""

import json
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.packed_files import read_all
from hostile_packs import InMemory, small_tar
from rekindle.core.directory import Directory
from rekindle.errors import RekindleError
from rekindle.fetch.packed import index_file
from rekindle.fetch.packed.index_file import BLOCK, IndexFile, IndexLocation
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.tar.index import index_tar

_LOCATION = IndexLocation(Directory(Path("/nowhere")), "a.tar.rkindex", {})


class _Versioned(InMemory):
    version = "1"


@cache
def _packed() -> Packed:
    return Packed("packed", [_Versioned(small_tar())], index_tar, keep_index=False)


def check_index(data: bytes) -> None:
    honest = _packed()
    made = _read(_whole(data), honest)
    if made is None:
        return
    source = Packed.__new__(Packed)
    with suppress(RekindleError):
        source.__setstate__({**honest.__getstate__(), "index": made.index})
        read_all(source)


def _read(content: bytes, honest: Packed) -> IndexFile | None:
    try:
        return index_file._read(_LOCATION, memoryview(content), honest.files)
    except MemoryError:
        raise
    except Exception:  # As `read_index` does: it is built again.
        return None


def _whole(data: bytes) -> bytes:
    """The file, with its checksums."""
    text, _, arrays = data.partition(b"\n")
    table = b"".join(
        zlib.crc32(arrays[at : at + BLOCK]).to_bytes(4, "little") for at in range(0, len(arrays), BLOCK)
    )
    with suppress(ValueError, RecursionError):
        description = json.loads(text)
        if isinstance(description, dict):
            text = json.dumps({**description, "sums": zlib.crc32(table)}).encode()
    head = index_file._HEAD.pack(index_file._MAGIC, len(text), zlib.crc32(text), 0)[:-4]
    start = head + zlib.crc32(head).to_bytes(4, "little") + text
    return start + bytes(-len(start) % index_file._PAGE) + arrays + table


def indexes() -> list[bytes]:
    rows = _packed().index.rows
    names = b"a\xc3\xa9"
    plain = {"kind": "bytes"}
    array = {"kind": "array", "dtype": "|u1", "shape": [2, 2, 1], "order": "HWC"}
    chunks = {
        "kind": "chunks", "dtype": "<u2", "shape": [2, 2], "order": "", "chunk": [1, 2, 1],
        "filters": [["shuffle", 2], ["gzip", 6], ["fletcher32", 0], ["lzf", 0]], "fill": 7,
    }  # fmt: skip
    places = np.zeros(4, dtype=index_file.CHUNK)
    places["offset"], places["length"] = [512, 600, 700, 0], [47, 8, 12, 0]
    chunked = rows.copy()
    chunked["offset"], chunked["length"], chunked["decoding"] = 0, 4, 2
    short = rows.copy()
    short["length"], short["decoding"] = 4, 1
    return [
        _seed(rows, [plain]),
        _seed(rows, [plain, array], names=names, ends=[1, 3]),
        _seed(short, [plain, array]),
        _seed(chunked[:1], [plain, array, chunks], places[:2]),
        _seed(np.concatenate([chunked, short]), [plain, array, {**chunks, "chunk": [1, 2, 1]}], places),
    ]


def _seed(
    rows: Any, decodings: list[dict[str, object]], chunks: Any = (), names: bytes = b"", ends: Any = ()
) -> bytes:
    arrays = {
        "rows": rows,
        "chunks": np.array(list(chunks), dtype=index_file.CHUNK),
        "ends": np.array(ends, dtype="<i8"),
        "names": np.frombuffer(names, dtype="u1"),
    }
    places, content = {}, b""
    for name, array in arrays.items():
        places[name] = [len(content), len(array)]
        content += array.tobytes()
    description = {
        "format": "tar", "files": [["a.tar", "1"]], "settings": {}, "decodings": decodings,
        "classes": ["x", "y", "z", "u", "v"], "named": bool(names), "arrays": places, "bytes": len(content),
    }  # fmt: skip
    return json.dumps(description).encode() + b"\n" + content
