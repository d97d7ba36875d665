"""Numbers that follow from the indices which a sampler gave, the same in every process: not `hash()`."""

from __future__ import annotations

import dataclasses
import operator
import struct
from collections.abc import Sequence
from enum import Enum
from pathlib import PurePath
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from rekindle.core.samples import Index

_MOST_LEVELS = 16  # of containers in containers


class BatchContent(NamedTuple):
    """The samples of a batch: numbers for them, and what their indices are, which the digest covers."""

    ids: NDArray[np.int64]  # the indices themselves, or, if they are no integers, how many came before
    content: bytes | None  # None if nothing says what an index is, from one process to the next


class _NotComparableError(Exception):
    """An object of which nothing says whether it equals one of another process."""


def batch_content(indices: Sequence[Index], seen: int) -> BatchContent:
    """The samples of a batch before which so many were seen."""
    try:
        ids = np.fromiter(map(operator.index, indices), dtype=np.int64, count=len(indices))
        return BatchContent(ids, ids.tobytes())
    except (TypeError, OverflowError):
        ids = np.arange(seen, seen + len(indices), dtype=np.int64)
    parts: list[bytes] = []
    try:
        for index in indices:
            _write(index, parts, 0)
    except _NotComparableError:
        return BatchContent(ids, None)
    return BatchContent(ids, b"".join(parts))


def extended_digest(before: int | None, content: bytes | None) -> int | None:
    """The digest of all samples up to these; None from the first on that cannot be compared."""
    if before is None or content is None:
        return None
    return xxhash.xxh3_64_intdigest(content, before) >> 1 if content else before


def _write(value: object, parts: list[bytes], level: int) -> None:
    """Add what a value is: its kind, its length where it has one, then its content."""
    if level > _MOST_LEVELS:
        raise _NotComparableError
    if value is None:
        parts.append(b"n")
    elif isinstance(value, Enum):
        _write_all("e", (type(value).__qualname__, value.name), parts, level)
    elif isinstance(value, int | np.integer):
        parts.append(b"i%d;" % int(value))
    elif isinstance(value, float):
        parts.append(b"f" + struct.pack("<d", value))
    elif isinstance(value, complex):
        parts.append(b"c" + struct.pack("<dd", value.real, value.imag))
    elif isinstance(value, str | PurePath):
        _write_bytes("s", str(value).encode("utf-8", "surrogatepass"), parts)
    elif isinstance(value, bytes | bytearray):
        _write_bytes("b", bytes(value), parts)
    elif isinstance(value, list | tuple):
        _write_sequence(value, parts, level)
    elif isinstance(value, dict):
        _write_all("d", [one for item in value.items() for one in item], parts, level)
    elif isinstance(value, set | frozenset):
        _write_set(value, parts, level)
    elif isinstance(value, slice | range):
        _write_all("r", (value.start, value.stop, value.step), parts, level)
    elif isinstance(value, np.ndarray | np.generic):
        _write_array(np.asarray(value), parts, level)
    elif isinstance(value, torch.Tensor):
        _write_tensor(value, parts, level)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value) if field.compare]
        _write_all("o", [type(value).__qualname__, *fields], parts, level)
    else:
        raise _NotComparableError


def _write_sequence(value: Sequence[object], parts: list[bytes], level: int) -> None:
    if set(map(type, value)) == {int}:  # a batch of indices that one call loads
        try:
            _write_bytes("a", np.array(value, dtype=np.int64).tobytes(), parts)
            return
        except OverflowError:
            pass
    _write_all("l", value, parts, level)


def _write_all(kind: str, values: Sequence[object], parts: list[bytes], level: int) -> None:
    parts.append(f"{kind}{len(values)};".encode())
    for value in values:
        _write(value, parts, level + 1)


def _write_bytes(kind: str, value: bytes, parts: list[bytes]) -> None:
    parts.append(f"{kind}{len(value)};".encode() + value)


def _write_set(values: set[object] | frozenset[object], parts: list[bytes], level: int) -> None:
    """Their order is another in each process."""
    written = []
    for value in values:
        own: list[bytes] = []
        _write(value, own, level + 1)
        written.append(b"".join(own))
    parts.append(b"u%d;" % len(written) + b"".join(sorted(written)))


def _write_array(array: NDArray[np.generic], parts: list[bytes], level: int) -> None:
    if array.dtype.hasobject:
        _write_all("l", (array.shape, array.ravel().tolist()), parts, level)
    else:
        _write_bytes("m", f"{array.dtype.str}{array.shape}".encode(), parts)
        _write_bytes("b", array.tobytes(), parts)


def _write_tensor(tensor: torch.Tensor, parts: list[bytes], level: int) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise _NotComparableError
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    _write_bytes("m", f"{plain.dtype}{tuple(plain.shape)}".encode(), parts)
    # NumPy does not have all of torch's types.
    _write_array(plain.reshape(-1).view(torch.uint8).numpy(), parts, level)
