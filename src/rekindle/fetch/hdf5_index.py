"""Where the samples of HDF5 files are: asked of HDF5's own library, in a process that may die of it.

The library only says where data sets and chunks lie. References to bytes of variable length are followed
here, through the file's global heaps, and labels are read here as well.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError, FormatError
from rekindle.fetch import hdf5_child
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.decodings import ChunkedArray
from rekindle.fetch.hdf5_heap import REFERENCE, heap_ranges
from rekindle.fetch.labels import numbered
from rekindle.fetch.listing import Names
from rekindle.fetch.record_index import (
    BYTES,
    CHUNK,
    MOST_BYTES,
    MOST_CHUNK_BYTES,
    MOST_DECODINGS,
    NO_LABEL,
    Decoding,
    RecordIndex,
    check_ranges,
    make_rows,
)

# Seconds for a file, and one more for each megabyte that it has: by the clock, since storage may be slow, and
# of work, of which sound files take far less; damaged ones make the library work for ever.
PATIENCE, WORK = 60.0, 5.0
_STARTING = 120.0  # seconds until the process has imported what it needs, from slow storage too
_PIECE = 1 << 16
_MOST_GROWTH = 2000  # no compression of HDF5 makes more of its bytes
_MORE_SAMPLES = 1_000_000  # than the file has bytes: most of them would never have been written


def index_hdf5(
    files: Sequence[ByteFile],
    settings: Mapping[str, Any],
    told: Callable[[int], None],
    library: Library | None = None,
) -> RecordIndex:
    """The samples of HDF5 files. Settings: `images`, `labels`: names of data sets (or of a group)."""
    own = library or Library()
    try:
        parts, done = [], 0
        for file in files:
            parts.append(_index_one(own, file, settings))
            done += file.size
            told(done)
    finally:
        if library is None:
            own.close()
    return _joined(parts)


class Library:
    """HDF5's library in a process of its own, started when it is first asked and whenever it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if importlib.util.find_spec("h5py") is None:
            raise ArgumentError("HDF5 files need h5py: pip install 'rekindle[hdf5]'.")

    def ask(self, file: ByteFile, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is in a file, and arrays; FormatError if it is damaged."""
        with tempfile.TemporaryDirectory(prefix="rekindle-hdf5-") as folder:
            out = Path(folder) / "arrays.npz"
            # Of a remote file, it is told the size, and asks for the bytes.
            where: dict[str, Any] = {"path": os.path.abspath(file.name), "size": None}
            if "://" in file.name:
                where = {"path": None, "size": file.size}
            where |= {"out": str(out), "seconds": WORK + file.size / 1e6, "bytes": file.size}
            request = {**where, **{k: settings.get(k) for k in ("images", "labels")}}
            answer = self._answer(file, json.dumps(request).encode() + b"\n")
            if "refused" in answer:
                raise FormatError(f"{file.name!r}: {answer['refused']}")
            if "damaged" in answer:
                raise FormatError(
                    f"{file.name!r} at byte 0: HDF5 cannot read it, it is damaged or cut off: "
                    f"{answer['damaged']}"
                )
            with np.load(out, allow_pickle=False) as arrays:
                return answer, {name: arrays[name] for name in arrays.files}

    def _answer(self, file: ByteFile, request: bytes) -> dict[str, Any]:
        if self._process is None:
            self._process = _started()
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except BrokenPipeError:
            pass  # It died; reading tells so.
        deadline = time.monotonic() + PATIENCE + file.size / 1e6
        line = _line(process, deadline)
        while line is not None and line.startswith(b'{"read":') and line.endswith(b"\n"):
            deadline += self._send(process, file, *json.loads(line)["read"])
            line = _line(process, deadline)
        if line is None or not line.endswith(b"\n"):
            self.close()
            late = line is None or process.returncode == -signal.SIGXCPU
            what = "took too long" if late else "crashed"
            raise FormatError(f"{file.name!r} at byte 0: HDF5's library {what} on this file. It is damaged.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _send(self, process: subprocess.Popen[bytes], file: ByteFile, offset: int, length: int) -> float:
        """Send what is asked for of a file; returns how long it took to get it."""
        started = time.monotonic()
        try:
            data = file.read(offset, length)
        except BaseException:
            self.close()
            raise
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(data)
            process.stdin.flush()
        return time.monotonic() - started

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)


def _started() -> subprocess.Popen[bytes]:
    """The process, ready to be asked; ArgumentError if it cannot import what it needs."""
    with tempfile.TemporaryFile() as said:
        # It finds packages where this process does (-I would not), but not beside its own file.
        process = subprocess.Popen(
            [sys.executable, "-P", hdf5_child.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
        line: bytes | None = None
        try:
            line = _line(process, time.monotonic() + _STARTING)
        finally:
            if line != hdf5_child.READY:
                _end(process)
        if line != hdf5_child.READY:
            said.seek(0)
            last = said.read().decode(errors="replace").strip().rpartition("\n")[2]
            why = f"no answer within {_STARTING:.0f} seconds" if line is None else last
            raise ArgumentError(
                f"HDF5 files are looked into by a process of its own, which did not start: {why}. See that "
                f"`{sys.executable} -P -c 'import h5py'` works: what is only on sys.path, add to PYTHONPATH."
            )
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _line(process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
    """A line of what the process says; cut off if it died, None if it took too long."""
    assert process.stdout is not None
    got = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not got.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            piece = os.read(process.stdout.fileno(), _PIECE)
            if not piece:
                break
            got += piece
    return bytes(got)


Part = tuple[
    NDArray[np.void],
    list[Decoding],
    NDArray[np.void],
    list[bytes] | None,
    list[int | str] | None,
    list[str] | None,
]


def _index_one(library: Library, file: ByteFile, settings: Mapping[str, Any]) -> Part:
    answer, arrays = library.ask(file, settings)
    try:
        if "images" not in answer:
            return _of_groups(file, answer, arrays["places"])
        labels = _labels(file, answer, arrays)
        keys = _texts(file, answer, arrays, "keys") if "keys" in answer else None
        rows, decodings, chunks = _of_array(file, answer["images"], arrays.get("images"), answer["base"])
    except (KeyError, TypeError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{file.name!r} at byte 0: a damaged description: {error}") from error
    if labels is not None and len(labels) != len(rows):
        raise FormatError(f"{file.name!r} at byte 0: {len(labels)} labels for {len(rows)} images.")
    if keys is not None and len(keys) != len(rows):
        raise FormatError(f"{file.name!r} at byte 0: {len(keys)} names for {len(rows)} images.")
    return rows, decodings, chunks, keys, labels, answer.get("classes")


def _of_groups(file: ByteFile, answer: Mapping[str, Any], places: NDArray[np.int64]) -> Part:
    """A data set a sample."""
    check_ranges(places[:, 0], places[:, 1], file.size, file.name)
    decodings, number_of = [BYTES], {"[]": 0}
    numbers = []
    for shape in answer["shapes"]:
        key = str(shape)
        if key not in number_of:
            number_of[key] = len(decodings)
            decodings.append(_array_decoding("|u1", shape))
        numbers.append(number_of[key])
    if len(decodings) > MOST_DECODINGS:
        raise FormatError(f"{file.name!r} at byte 0: images of more than {MOST_DECODINGS:,} sizes.")
    rows = make_rows(places[:, 0], places[:, 1], decodings=numbers)
    names = [name.encode("utf-8", errors="replace") for name in answer["names"]]
    labels = answer["labels_of"]
    given = None if all(label is None for label in labels) else labels
    if given is not None and any(label is None for label in labels):
        raise FormatError(f"{file.name!r} at byte 0: some samples have labels and some have none.")
    return rows, decodings, np.empty(0, dtype=CHUNK), names, given, None


def _array_decoding(dtype: str, shape: Sequence[int]) -> Decoding:
    return {"kind": "array", "dtype": dtype, "shape": list(shape), "order": _order(dtype, shape)}


def _order(dtype: str, shape: Sequence[int]) -> str:
    """What the axes of one image are: the last of one or three is colours, or else the first."""
    if np.dtype(dtype) != np.uint8:
        return ""
    if len(shape) == 2:
        return "HW"
    if len(shape) == 3 and shape[2] in (1, 3):
        return "HWC"
    return "CHW" if len(shape) == 3 and shape[0] in (1, 3) else ""


def _chunks_of(file: ByteFile, table: NDArray[np.int64]) -> NDArray[np.void]:
    check_ranges(table[:, 0], table[:, 1], file.size, file.name)
    chunks = np.zeros(len(table), dtype=CHUNK)
    chunks["offset"], chunks["length"], chunks["mask"] = table[:, 0], table[:, 1], table[:, 2]
    return chunks


def _of_array(
    file: ByteFile, told: Mapping[str, Any], table: NDArray[np.int64] | None, base: int
) -> tuple[NDArray[np.void], list[Decoding], NDArray[np.void]]:
    """The samples of one data set."""
    nothing = np.empty(0, dtype=CHUNK)
    if told["kind"] == "vlen":
        offsets, lengths = heap_ranges(file, _whole(file, told, table, REFERENCE), base)
        return make_rows(offsets, lengths), [BYTES], nothing
    _check_count(file, told)
    count, *shape = told["shape"]
    dtype = np.dtype(told["dtype"])
    nbytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if not 0 < nbytes <= MOST_BYTES or count * nbytes > _MOST_GROWTH * file.size + (64 << 20):
        raise FormatError(f"{file.name!r} at byte 0: {count:,} samples of {nbytes:,} bytes do not fit it.")
    if table is None:
        if told["size"] < count * nbytes or told["offset"] + count * nbytes > file.size:
            raise FormatError(
                f"{file.name!r} at byte {told['offset']}: {count} samples of {nbytes} bytes do not fit it."
            )
        how = BYTES if told["kind"] == "fixed" else _array_decoding(told["dtype"], shape)
        offsets = told["offset"] + np.arange(count, dtype=np.int64) * nbytes
        return make_rows(offsets, nbytes), [how], nothing
    if told["kind"] == "fixed":
        raise FormatError(f"{file.name!r}: {told['name']!r} has texts of one length in chunks. Copy it.")
    chunks = _chunks_of(file, table)
    inner = len(chunks) // max(1, -(-count // told["chunk"][0]))
    numbers = np.arange(count, dtype=np.int64)
    how = {
        "kind": "chunks",
        "dtype": told["dtype"],
        "shape": shape,
        "order": _order(told["dtype"], shape),
        "chunk": told["chunk"],
        "filters": told["filters"],
        "fill": told["fill"],
    }
    rows = make_rows(
        numbers // told["chunk"][0] * inner, inner, parts=numbers % told["chunk"][0], decodings=0
    )
    return rows, [how], chunks


def _check_count(file: ByteFile, told: Mapping[str, Any]) -> None:
    """Raise FormatError if a data set has more entries than anybody can have written to the file."""
    if told["shape"][0] > _MORE_SAMPLES + file.size:
        raise FormatError(
            f"{file.name!r} at byte 0: {told['name']!r} is said to have {told['shape'][0]:,} entries, but "
            f"the file has {file.size:,} bytes. It is damaged."
        )


def _whole(
    file: ByteFile, told: Mapping[str, Any], table: NDArray[np.int64] | None, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """All of a data set of one axis."""
    _check_count(file, told)
    (count,) = told["shape"]
    if not 0 <= count * dtype.itemsize <= _MOST_GROWTH * file.size + (1 << 20):
        raise FormatError(f"{file.name!r} at byte 0: {told['name']!r} is said to have {count:,} entries.")
    if table is None:
        if count * dtype.itemsize > told["size"]:
            raise FormatError(f"{file.name!r} at byte {told['offset']}: {told['name']!r} is cut off.")
        return np.frombuffer(file.read(told["offset"], count * dtype.itemsize), dtype=dtype)
    (length,) = told["chunk"]
    if not 0 < length * dtype.itemsize <= MOST_CHUNK_BYTES:
        raise FormatError(
            f"{file.name!r} at byte 0: {told['name']!r} is in chunks of {length:,} entries. It is damaged."
        )
    chunks = _chunks_of(file, table)
    pieces = ChunkedArray([file], chunks, dtype, (), "", tuple(told["chunk"]), told["filters"], told["fill"])
    return np.concatenate([pieces.chunk(number) for number in range(len(chunks))] or [np.empty(0, dtype)])[
        :count
    ]


def _labels(file: ByteFile, answer: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[int | str] | None:
    told = answer.get("labels")
    if told is None:
        return None
    table = arrays.get("labels")
    if told["kind"] == "numbers":
        dtype = np.dtype(told["dtype"])
        if dtype.kind not in "iu":
            raise FormatError(f"{file.name!r} at byte 0: labels of the type {dtype}.")
        numbers: list[int | str] = _whole(file, told, table, dtype).astype(np.int64).tolist()
        return numbers
    return [text.decode("utf-8", errors="replace") for text in _texts(file, answer, arrays, "labels")]


def _texts(file: ByteFile, answer: Mapping[str, Any], arrays: Mapping[str, Any], name: str) -> list[bytes]:
    """The texts of a data set."""
    told, table = answer[name], arrays.get(name)
    if told["kind"] == "vlen":
        offsets, lengths = heap_ranges(file, _whole(file, told, table, REFERENCE), answer["base"])
        places = zip(offsets.tolist(), lengths.tolist(), strict=True)
        return [bytes(file.read(offset, length)).rstrip(b"\0") for offset, length in places]
    texts: list[bytes] = _whole(file, told, table, np.dtype(told["dtype"].replace("V", "S"))).tolist()
    return texts


def _joined(parts: Sequence[Part]) -> RecordIndex:
    """One index of several files'."""
    all_rows: list[NDArray[np.void]] = []
    all_chunks: list[NDArray[np.void]] = []
    decodings: list[Decoding] = []
    names: list[bytes] = []
    labels: list[int | str] = []
    for number, (rows, own, chunks, keys, given, _) in enumerate(parts):
        rows, chunks = rows.copy(), chunks.copy()
        chunked = np.array([how["kind"] == "chunks" for how in own])[rows["decoding"]]
        rows["offset"][chunked] += sum(len(before) for before in all_chunks)
        rows["file"], chunks["file"] = number, number
        rows["decoding"] += len(decodings)
        all_rows.append(rows)
        all_chunks.append(chunks)
        decodings += own
        names += keys or []
        labels += given or []
    rows = np.concatenate(all_rows)
    classes = next((part[5] for part in parts if part[5] is not None), None)
    if labels and len(labels) != len(rows):
        raise FormatError("some of the HDF5 files have labels, and some have none.")
    if all(isinstance(label, int) for label in labels):
        rows["label"] = labels or NO_LABEL
    else:
        classes, rows["label"] = numbered([str(label) for label in labels], "the HDF5 files")
    named = Names.of(names) if len(names) == len(rows) else None
    return RecordIndex("hdf5", rows, decodings, np.concatenate(all_chunks), named, classes)
