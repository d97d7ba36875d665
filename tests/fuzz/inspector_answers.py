"""Answers of the process that HDF5's library runs in: samples within the file, or an error.

A file may have taken that process over. An input is what it prints, a byte 0, and the table of chunks or
ranges that it writes.
"""

import io
import json
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.packed_files import read_all
from hostile_packs import InMemory
from rekindle.errors import RekindleError
from rekindle.fetch.packed.hdf5.index import index_hdf5
from rekindle.fetch.packed.hdf5.inspector import Inspector
from rekindle.fetch.packed.source import Packed

_FILE = bytes(range(256)) * 8
_MOST_PRINTED = 30_000  # bytes: a pipe takes them without a reader


class FakeProcess:
    """A process that has printed its answer, and writes its arrays when it is asked."""

    returncode = 0

    def __init__(self, printed: bytes, table: bytes) -> None:
        self.stdin, self._table = self, table
        reader, writer = os.pipe()
        os.write(writer, printed[:_MOST_PRINTED])
        os.close(writer)
        self.stdout = os.fdopen(reader, "rb")

    def write(self, request: bytes) -> None:
        if request.startswith(b'{"path"'):
            Path(json.loads(request)["out"]).write_bytes(_archive(self._table))

    def flush(self) -> None:
        pass

    kill = wait = close = flush


def _archive(table: bytes) -> bytes:
    if table.startswith(b"PK"):
        return table
    kind, numbers = table[:1], table[1:]
    width = 2 if kind == b"r" else 3
    array = np.frombuffer(numbers[: len(numbers) // (8 * width) * 8 * width], dtype="<i8").reshape(-1, width)
    if kind == b"t":  # texts
        array = np.array([["a"]])
    names = {b"r": ["ranges"], b"n": []}.get(kind, ["images", "labels", "keys"])
    out = io.BytesIO()
    np.savez(out, **dict.fromkeys(names, array))
    return out.getvalue()


def check_answer(data: bytes) -> None:
    printed, _, table = data.partition(b"\0")
    inspector = Inspector()
    inspector._process = process = FakeProcess(printed, table)  # type: ignore[assignment]
    try:
        with suppress(RekindleError):
            read_all(
                Packed(
                    "packed",
                    [InMemory(_FILE)],
                    lambda *given: index_hdf5(*given, inspector=inspector),
                    keep_index=False,
                )
            )
    finally:
        process.stdout.close()


def answers() -> list[bytes]:
    images: dict[str, Any] = {
        "name": "images", "kind": "numbers", "dtype": "|u1", "shape": [2, 4, 5, 3], "filters": [], "fill": 0,
    }  # fmt: skip
    stored, labels = {**images, "offset": 256, "size": 120}, {**images, "shape": [2], "dtype": "<i4"}
    chunked = {**images, "chunk": [1, 4, 5, 3], "filters": [["shuffle", 1], ["gzip", 4]]}
    texts = {**labels, "kind": "vlen", "dtype": "", "offset": 0, "size": 64}
    fixed = {**labels, "kind": "fixed", "dtype": "|V8", "offset": 0, "size": 16}
    numbers = {**labels, "offset": 8, "size": 8}
    samples = {"names": ["x/a", "y/b"], "shapes": [[], [2, 2]], "sample_labels": ["x", 1], "base": 0}
    table = struct.pack("<6q", 256, 60, 0, 316, 60, 0)
    return [
        _seed({"images": stored, "labels": numbers, "classes": ["x"], "base": 0}),
        _seed({"images": chunked, "labels": {**numbers, "chunk": [1]}, "base": 0}, b"c" + table),
        _seed({"images": texts, "labels": fixed, "keys": texts, "base": 0}),
        _seed({"images": fixed, "labels": texts, "base": 512}),
        _seed(samples, b"r" + struct.pack("<4q", 0, 100, 100, 4)),
        _seed({"read": [0, 10]}).removesuffix(b"\0n") + _seed({"unsupported": "it"}),
        _seed({"corrupt": "it"}),
        _seed({"images": {**stored, "shape": [1], "dtype": "<i8", "size": 8}, "base": 0}),
    ]


def _seed(answer: dict[str, Any], table: bytes = b"n") -> bytes:
    return json.dumps(answer).encode() + b"\n\0" + table
