"""Samples of packed files: an index of byte ranges, and views of these ranges."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rekindle.core.limits import DEFAULT_LIMITS, Limits
from rekindle.core.progress import byte_progress_bar
from rekindle.errors import ArgumentError, DataError, FormatError
from rekindle.fetch.byte_files import ByteFile, LocalFile
from rekindle.fetch.labels import Labels, classes_up_to, no_key_matches, number_classes
from rekindle.fetch.packed.index_file import BLOCK, IndexFile, index_paths, read_index, write_index
from rekindle.fetch.packed.record_index import (
    NO_LABEL,
    ROW,
    Decoding,
    Indexer,
    IndexSettings,
    RecordIndex,
)
from rekindle.fetch.packed.sample_decoders import Decode, decoder
from rekindle.fetch.source import Array, MappedSamples, Stored

_ROW = struct.Struct("<qqIIII")
_Row = tuple[int, int, int, int, int, int]  # offset, label, length, file, part, decoding
_UNKNOWN = -1, 0  # height and width: no length is that of such pixels
_WORTH_PREFETCHING = 32 << 10  # bytes of a sample, on average
_ROWS_PER_BLOCK_LOG2 = (BLOCK // ROW.itemsize).bit_length() - 1


class Packed:
    """The samples of packed files: `read(index)` gives a view of a sample's bytes, or its pixels.

    Args:
        root: The path or URL that was opened, for messages.
        files: The files, in the order in which samples are numbered.
        indexer: Finds the samples of the files, if there is no index yet.
        settings: The indexer's settings; an index belongs to files and settings.
        labels: Labels by the samples' keys, in place of those in the files.
        keep_index: Whether the index is saved, beside the first file or in the user's cache folder.
        limits: What one sample may cost.

    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        files: Sequence[ByteFile],
        indexer: Indexer,
        settings: IndexSettings | None = None,
        *,
        labels: Labels | None = None,
        keep_index: bool = True,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        if not files:
            raise ArgumentError(f"{os.fspath(root)!r} matches no files.")
        self.root, self.files = root, list(files)
        self._indexer = indexer
        self._settings: IndexSettings = settings or {}
        self._labels, self._keep, self._limits = labels, keep_index, limits
        self._own_targets: NDArray[np.int64] | None = None
        self._own_classes: list[str] | None = None
        self._load()

    def _load(self, index: RecordIndex | None = None) -> None:
        self._stored: IndexFile | None = None
        if index is None:
            index, self._stored = _index_of(
                self.files, self._indexer, self._settings, self._limits, self._keep
            )
        self.index = index
        self._size = len(index)
        self._rows = index.rows.view(np.uint8).reshape(-1).data if len(index) else memoryview(b"")
        self._checked = (
            self._stored.checked if self._stored else b"\1" * ((self._size >> _ROWS_PER_BLOCK_LOG2) + 1)
        )
        self._decoders: list[Decode | None] = [
            decoder(decoding, self.files, index.chunks, self._limits) for decoding in index.decodings
        ]
        # For many rows at once, with one entry more for numbers that do not exist.
        self._pixels = np.array([*map(_pixels_of, index.decodings), _UNKNOWN], dtype=np.int64)
        self._mappable = np.array([*map(_mappable_size, self.files), -1])
        self._max_bytes = self._limits.encoded_bytes
        self._copies = [file.copy for file in self.files]
        if self._labels is not None and self._own_targets is None:
            self._own_classes, self._own_targets = _relabelled(self, self._labels, self._limits)

    def __len__(self) -> int:
        return self._size

    def _row(self, index: int) -> _Row:
        if not 0 <= index < self._size:
            raise IndexError(f"index {index} is out of range: there are {self._size} samples")
        if not self._checked[index >> _ROWS_PER_BLOCK_LOG2] and self._stored is not None:
            self._stored.check(index >> _ROWS_PER_BLOCK_LOG2)
        row: _Row = _ROW.unpack_from(self._rows, index << 5)
        return row

    def read(self, index: int) -> Stored:
        """A view of a sample's bytes, or its pixels."""
        offset, _, length, file, part, decoding = self._row(index)
        try:
            decode = self._decoders[decoding]
            if decode is None:
                if length > self._max_bytes:
                    self._limits.check_encoded(length)
                return self.files[file].read(offset, length)
        except IndexError:
            raise self._invalid_row(index) from None
        return decode(file, offset, length, part)

    def copy(self, index: int) -> bytes | Array:
        """A sample's bytes in memory of their own, read without holding the GIL; or its pixels."""
        # `read` once more but for one call: a function for both would be called for every sample.
        offset, _, length, file, part, decoding = self._row(index)
        try:
            decode = self._decoders[decoding]
            if decode is None:
                if length > self._max_bytes:
                    self._limits.check_encoded(length)
                return self._copies[file](offset, length)
        except IndexError:
            raise self._invalid_row(index) from None
        return decode(file, offset, length, part)

    def mapped(self, indices: NDArray[np.int64]) -> MappedSamples:
        """Where samples that are bytes, or pixels as they are, lie in local files, for all of these at once.

        What `read` would refuse has no file here.
        """
        if indices.size and not 0 <= indices.min() <= indices.max() < self._size:
            raise IndexError(f"indices {indices} are out of range: there are {self._size} samples")
        if self._stored is not None:
            for block in {*(indices >> _ROWS_PER_BLOCK_LOG2).tolist()}:
                if not self._checked[block]:
                    self._stored.check(block)
        rows = self.index.rows[indices]
        files, offsets = rows["file"].astype(np.int64), rows["offset"].astype(np.int64)
        lengths = rows["length"].astype(np.int64)
        sizes = self._mappable[np.minimum(files, len(self.files))]
        possible = (
            (offsets >= 0) & (offsets <= sizes - lengths) & (lengths > 0) & (lengths <= self._max_bytes)
        )
        pixels = self._pixels[np.minimum(rows["decoding"], len(self._decoders))]
        heights, widths = pixels[:, 0], pixels[:, 1]
        possible &= (heights == 0) | (lengths == 3 * heights * widths)
        files[~possible] = -1
        ends = offsets + lengths
        memory = {
            number: self.files[number].mapped(int(ends[files == number].max()))
            for number in {*files.tolist()} - {-1}
        }
        labels = rows["label"] if self._own_targets is None else self._own_targets[indices]
        return MappedSamples(memory, files, offsets, lengths, heights, widths, labels)

    def _invalid_row(self, index: int) -> FormatError:
        return FormatError(
            f"{self.root!r}: the index has an invalid row for sample {index}. Delete the index."
        )

    def _ranges(self, indices: Sequence[int]) -> list[tuple[int, int, int]]:
        """(file, offset, length) of what reading these samples will read."""
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
        """Whether `prefetch` saves more time than it takes: not for small samples on a local disk."""
        if any(file.is_remote for file in self.files):
            return True
        return sum(file.size for file in self.files) >= _WORTH_PREFETCHING * max(1, self._size)

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to fetch samples that will be read soon; returns at once."""
        by_file: dict[int, list[tuple[int, int]]] = {}
        for file, offset, length in self._ranges(indices):
            by_file.setdefault(file, []).append((offset, length))
        for file, ranges in by_file.items():
            if file < len(self.files):  # An invalid one is an error when it is read.
                self.files[file].prefetch(ranges)

    def indexed_again(self) -> Packed:
        """The same samples by a new index, for which all checksums are read.

        FormatError if samples cannot be found any more, or if the saved index is not one of these files.
        """
        readers = [file.for_indexing() for file in self.files]
        fresh = self._indexer(readers, self._settings, lambda _: None, self._limits)
        saved = self._all_rows()
        damaged = fresh.damaged()
        if len(fresh) != len(saved) or not np.array_equal(fresh.rows[~damaged], saved[~damaged]):
            raise FormatError(
                f"{os.fspath(self.root)!r}: the saved index differs from these files. Delete the index."
            )
        again = copy.copy(self)
        again._load(fresh)
        return again

    @property
    def has_checksums(self) -> bool:
        """Whether the files have a checksum of every sample, which is verified."""
        kinds = self.index.decodings
        return (self.index.format == "tfrecord" and self._settings.get("verify", True)) or all(
            any(name == "fletcher32" for name, _ in kind.get("filters", ())) for kind in kinds
        )

    def path(self, index: int) -> str:
        """The file that a sample is in, and its key or offset there."""
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
        """The class number of a sample; -1 if it has no label."""
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
        """The name of each class, from the files; its number if they have none."""
        if self._own_classes is None:
            named = self.index.classes
            largest = int(self.labels.max(initial=-1)) if named is None else -1
            self._own_classes = (
                classes_up_to(largest, str(self.root), self._limits) if named is None else list(named)
            )
        return self._own_classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class, by its name."""
        return {name: number for number, name in enumerate(self.classes)}

    def encoded_nbytes(self, index: int) -> int:
        """How many bytes of a sample have to be decoded: none of pixels."""
        _, _, length, _, _, decoding = self._row(index)
        return length if self.index.decodings[decoding].get("kind") == "bytes" else 0

    def lengths(self) -> NDArray[np.int64]:
        """The stored size of each sample in bytes; of chunks that hold several, its share."""
        rows = self._all_rows()
        lengths = rows["length"].astype(np.int64)
        for number, decoding in enumerate(self.index.decodings):
            if decoding.get("kind") == "chunks":
                sums = np.concatenate([[0], np.cumsum(self.index.chunks["length"], dtype=np.int64)])
                chosen = rows["decoding"] == number
                first, count = rows["offset"][chosen], rows["length"][chosen].astype(np.int64)
                if len(first) and (first.min() < 0 or (first + count).max() >= len(sums)):
                    raise FormatError(f"{self.root!r}: the index has chunks that do not exist. Delete it.")
                lengths[chosen] = (sums[first + count] - sums[first]) // max(1, int(decoding["chunk"][0]))
        return lengths

    def version(self) -> str:
        """Changes with the version of any file, and with where the samples lie."""
        described = [[file.version for file in self.files], list(self.index.decodings)]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        digest.update(self._all_rows().view(np.uint8).data)
        digest.update(self.index.chunks.view(np.uint8).data)
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, object]:
        left_out = {
            "_stored", "_rows", "_checked", "_decoders", "_pixels", "_mappable",
            "_copies", "_size", "_max_bytes",
        }  # fmt: skip
        if self._stored is not None:  # An index that is not in a file is pickled: to build it may take long.
            left_out.add("index")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        index = state.get("index")
        self._load(index if isinstance(index, RecordIndex) else None)

    def __repr__(self) -> str:
        return f"Packed({os.fspath(self.root)!r}: {len(self):,} samples in {len(self.files):,} files)"


def _pixels_of(decoding: Decoding) -> tuple[int, int]:
    """Height and width of samples that are pixels, a row after the other; 0 and 0 of what is bytes."""
    if decoding["kind"] == "bytes":
        return 0, 0
    if decoding["kind"] != "array" or np.dtype(decoding["dtype"]) != np.uint8:
        return _UNKNOWN
    shape = tuple(decoding.get("shape", ()))
    is_image = len(shape) == 3 and shape[2] == 3 and decoding.get("order", "") in ("", "HWC")
    return (shape[0], shape[1]) if is_image and min(shape) > 0 else _UNKNOWN


def _mappable_size(file: ByteFile) -> int:
    """The size of a file that can be mapped into memory; −1 of another."""
    return file.size if isinstance(file, LocalFile) else -1


def _index_of(
    files: list[ByteFile], indexer: Indexer, settings: IndexSettings, limits: Limits, keep: bool
) -> tuple[RecordIndex, IndexFile | None]:
    """The saved index, or a new one, which is saved if all files have a version."""
    paths = index_paths(files, settings) if keep and all(file.version for file in files) else []
    for path in paths:
        saved = read_index(path, files)
        if saved is not None:
            return saved.index, saved
    total = sum(file.size for file in files)
    with byte_progress_bar(f"indexing {os.path.basename(files[0].name)}", total) as report:
        index = indexer([file.for_indexing() for file in files], settings, report, limits)
    for file in files:
        file.check_unchanged()
    for path in paths:
        if write_index(path, index, files):
            saved = read_index(path, files)
            if saved is not None:
                return saved.index, saved
    return index, None


def _relabelled(packed: Packed, labels: Labels, limits: Limits) -> tuple[list[str], NDArray[np.int64]]:
    """Classes and labels of the samples, from labels by key."""
    if packed.index.names is None:
        raise ArgumentError(
            f"{packed.root!r}: its samples have no names, so labels cannot be given by name. Give the name "
            "of the dataset in the file that holds the labels."
        )
    readable = np.flatnonzero(~packed.index.damaged())
    keys = [packed.key(index) for index in readable.tolist()]
    missing = [key for key in keys if key not in labels]
    if missing:
        raise DataError(
            f"{packed.root!r}: {len(missing):,} of {len(keys):,} samples have no label, the first is "
            f"{missing[0]!r}.{no_key_matches(keys, missing, labels)}"
        )
    classes, numbers = number_classes([labels[key] for key in keys], str(packed.root), limits)
    targets = np.full(len(packed), NO_LABEL, dtype=np.int64)
    targets[readable] = numbers
    return classes, targets
