"""Samples of packed files: an index of byte ranges, and views of these ranges."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ArgumentError, DataError, FormatError
from rekindle.fetch.byte_files import ByteFile
from rekindle.fetch.decodings import Decode, decoder
from rekindle.fetch.index_file import BLOCK, IndexFile, places, read_index, write_index
from rekindle.fetch.labels import Labels, names_of_numbers, numbered
from rekindle.fetch.progress import progress
from rekindle.fetch.record_index import ROW, RecordIndex
from rekindle.fetch.source import Stored

_ROW = struct.Struct("<qqIIII")
_WORTH_PREFETCHING = 32 << 10  # bytes of a sample, on average
_ROWS_A_BLOCK = (BLOCK // ROW.itemsize).bit_length() - 1

Indexer = Callable[[Sequence[ByteFile], Mapping[str, Any], Callable[[int], None]], RecordIndex]


class Packed:
    """The samples of packed files: `read(index)` gives a view of one's bytes, or its pixels.

    Args:
        root: What was opened, to show.
        files: The files, in the order in which samples are numbered.
        indexer: Finds the samples of files, if there is no index of them yet: (files, settings, report of
            bytes done) to an index.
        settings: What the indexer is told, as plain data: part of which index belongs to the files.
        labels: Labels by the samples' keys, in place of those in the files.
        keep_index: Whether the index is kept beside the first file or in the user's cache folder.

    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        files: Sequence[ByteFile],
        indexer: Indexer,
        settings: Mapping[str, Any] | None = None,
        *,
        labels: Labels | None = None,
        keep_index: bool = True,
    ) -> None:
        if not files:
            raise ArgumentError(f"{os.fspath(root)!r} stands for no files.")
        self.root, self.files = root, list(files)
        self._indexer, self._settings = indexer, dict(settings or {})
        self._labels, self._keep = labels, keep_index
        self._own_targets: NDArray[np.int64] | None = None
        self._own_classes: list[str] | None = None
        self._load()

    def _load(self, index: RecordIndex | None = None) -> None:
        self._stored: IndexFile | None = None
        if index is None:
            index, self._stored = _index_of(self.files, self._indexer, self._settings, self._keep)
        self.index = index
        self._size = len(index)
        self._rows = index.rows.view(np.uint8).reshape(-1).data if len(index) else memoryview(b"")
        self._checked = self._stored.checked if self._stored else b"\1" * ((self._size >> _ROWS_A_BLOCK) + 1)
        self._decoders: list[Decode | None] = [
            decoder(decoding, self.files, index.chunks) for decoding in index.decodings
        ]
        # What is fetched from elsewhere lies in memory of its own already.
        self._copies = [getattr(file, "copy", file.read) for file in self.files]
        if self._labels is not None and self._own_targets is None:
            self._own_classes, self._own_targets = _relabelled(self, self._labels)

    def __len__(self) -> int:
        return self._size

    def _row(self, index: int) -> tuple[Any, ...]:
        if not 0 <= index < self._size:
            raise IndexError(f"index {index} is out of range: there are {self._size} samples")
        if not self._checked[index >> _ROWS_A_BLOCK] and self._stored is not None:
            self._stored.check(index >> _ROWS_A_BLOCK)
        return _ROW.unpack_from(self._rows, index << 5)

    def read(self, index: int) -> Stored:
        """A view of a sample's bytes, or its pixels."""
        offset, _, length, file, part, decoding = self._row(index)
        stored: Stored
        try:
            decode = self._decoders[decoding]
            if decode is None:
                stored = self.files[file].read(offset, length)
                return stored
        except IndexError:
            raise self._wrong_row(index) from None
        stored = decode(file, offset, length, part)
        return stored

    def copy(self, index: int) -> bytes | NDArray[Any]:
        """A sample's bytes in memory of their own, for which other threads need not wait; or its pixels."""
        offset, _, length, file, part, decoding = self._row(index)
        try:
            decode = self._decoders[decoding]
            if decode is None:
                return bytes(self._copies[file](offset, length))
        except IndexError:
            raise self._wrong_row(index) from None
        pixels: NDArray[Any] = decode(file, offset, length, part)
        return pixels

    def _wrong_row(self, index: int) -> FormatError:
        return FormatError(f"{self.root!r}: sample {index} has a wrong row in the index.")

    def ranges(self, indices: Sequence[int]) -> list[tuple[int, int, int]]:
        """(file, offset, length) of what reading these samples will read: for prefetching."""
        found: list[tuple[int, int, int]] = []
        for index in indices:
            offset, _, length, file, _, decoding = self._row(index)
            if self.index.decodings[decoding].get("kind") == "chunks":
                rows = self.index.chunks[offset : offset + length]
                found += [(int(row["file"]), int(row["offset"]), int(row["length"])) for row in rows]
            else:
                found.append((file, offset, length))
        return found

    @property
    def is_worth_prefetching(self) -> bool:
        """Whether to announce samples takes less time than it saves: not for small ones on this machine."""
        if any(hasattr(file, "skimmed") for file in self.files):
            return True
        return sum(file.size for file in self.files) >= _WORTH_PREFETCHING * max(1, self._size)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to fetch these samples, which will be read soon."""
        by_file: dict[int, list[tuple[int, int]]] = {}
        for file, offset, length in self.ranges(indices):
            by_file.setdefault(file, []).append((offset, length))
        for file, ranges in by_file.items():
            self.files[file].prefetch(ranges)

    def check_files(self) -> None:
        """Index the files anew, with all checksums; FormatError if one is wrong, or the index is."""
        fresh = self._indexer([_skimmed(file) for file in self.files], self._settings, lambda _: None)
        if not np.array_equal(fresh.rows, self._all_rows()):
            raise FormatError(f"{os.fspath(self.root)!r}: its index is not of these files. Delete the index.")

    def path(self, index: int) -> str:
        """The file that a sample is in, and its key or place there."""
        offset, _, _, file, _, decoding = self._row(index)
        inside = self.key(index)
        if not inside:
            is_chunk = self.index.decodings[decoding].get("kind") == "chunks"
            inside = f"chunk {offset}" if is_chunk else f"byte {offset}"
        return f"{self.files[file].name}: {inside}"

    def key(self, index: int) -> str:
        """The name of a sample within its file; empty where the format has none."""
        if self.index.names is None:
            return ""
        return self.index.names[index].decode("utf-8", errors="replace")

    def target(self, index: int) -> int:
        """The number of a sample's class; -1 if it has no label."""
        if self._own_targets is not None:
            return int(self._own_targets[index])
        return int(self._row(index)[1])

    def _all_rows(self) -> NDArray[np.void]:
        if self._stored is not None:
            self._stored.check_all()
        return self.index.rows

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class number of each sample, as an array."""
        return self._all_rows()["label"] if self._own_targets is None else self._own_targets

    @property
    def targets(self) -> list[int]:
        """The class number of each sample."""
        targets: list[int] = self.labels.tolist()
        return targets

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Name and class number of each sample."""
        return [(self.path(index), target) for index, target in enumerate(self.targets)]

    @property
    def classes(self) -> list[str]:
        """The name of each class: of the files, or its number."""
        if self._own_classes is None:
            named = self.index.classes
            most = int(self.labels.max(initial=-1)) if named is None else -1
            self._own_classes = list(named) if named is not None else names_of_numbers(most, str(self.root))
        return self._own_classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""
        return {name: number for number, name in enumerate(self.classes)}

    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each sample takes as it is stored: of chunks, its share."""
        rows = self._all_rows()
        lengths = rows["length"].astype(np.int64)
        for number, decoding in enumerate(self.index.decodings):
            if decoding.get("kind") == "chunks":
                sums = np.concatenate([[0], np.cumsum(self.index.chunks["length"], dtype=np.int64)])
                chosen = rows["decoding"] == number
                first, count = rows["offset"][chosen], rows["length"][chosen].astype(np.int64)
                if len(first) and (first.min() < 0 or (first + count).max() >= len(sums)):
                    raise FormatError(f"{self.root!r}: its index names chunks that do not exist.")
                lengths[chosen] = (sums[first + count] - sums[first]) // max(1, int(decoding["chunk"][0]))
        return lengths

    def version(self) -> str:
        """Changes with the version of any file, and with where the samples are in them."""
        told = [[file.version for file in self.files], list(self.index.decodings)]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
        digest.update(self._all_rows().view(np.uint8).data)
        digest.update(self.index.chunks.view(np.uint8).data)
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"_stored", "_rows", "_checked", "_decoders", "_copies", "_size"}
        if self._stored is not None:  # An index without a file goes along: to make it may take long.
            left_out.add("index")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load(state.get("index"))

    def __repr__(self) -> str:
        return f"Packed({os.fspath(self.root)!r}: {len(self):,} samples in {len(self.files):,} files)"


def _index_of(
    files: list[ByteFile], indexer: Indexer, settings: dict[str, Any], keep: bool
) -> tuple[RecordIndex, IndexFile | None]:
    """The index that was kept, or a new one, which is kept then if all files have a version."""
    stores = places(files, settings) if keep and all(file.version for file in files) else []
    for store in stores:
        kept = read_index(store, files)
        if kept is not None:
            return kept.index, kept
    total = sum(file.size for file in files)
    with progress(f"indexing {os.path.basename(files[0].name)}", total) as told:
        index = indexer([_skimmed(file) for file in files], settings, told)
    for file in files:
        _check_unchanged(file)
    for store in stores:
        if write_index(store, index, files):
            kept = read_index(store, files)
            if kept is not None:
                return kept.index, kept
    return index, None


def _skimmed(file: ByteFile) -> ByteFile:
    """A file as it is best read when it is indexed: remote ones have a way of their own."""
    skimmed: Callable[[], ByteFile] | None = getattr(file, "skimmed", None)
    return file if skimmed is None else skimmed()


def _check_unchanged(file: ByteFile) -> None:
    """FormatError if a file on this machine is no longer what was indexed."""
    check: Callable[[], None] | None = getattr(file, "check_unchanged", None)
    if check is not None:
        check()


def _relabelled(packed: Packed, labels: Labels) -> tuple[list[str], NDArray[np.int64]]:
    """Classes and labels of the samples whose keys are given labels."""
    if packed.index.names is None:
        raise ArgumentError(
            f"{packed.root!r} has no names of samples to give labels to. Name the data set of its labels."
        )
    keys = [packed.key(index) for index in range(len(packed))]
    missing = [key for key in keys if key not in labels]
    if missing:
        raise DataError(
            f"{packed.root!r}: {len(missing):,} of {len(keys):,} samples have no label, the first is "
            f"{missing[0]!r}."
        )
    return numbered([labels[key] for key in keys], str(packed.root))
