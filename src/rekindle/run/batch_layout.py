"""How samples of equal shape lie in a batch's memory, so that workers can write each to its own row.

This is torch's `default_collate` for the common cases (tensors, arrays, numbers, strings, and tuples, lists,
named tuples and dicts of them) without the lists of tensors in between: a sample is copied from where the
dataset left it straight to its row of the batch. What is not described here goes through the collate
function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils import collate as torch_collate

from rekindle.core.samples import Batch, Sample
from rekindle.fetch.source import Array

# Bytes or characters: longer ones take less time in memory than in a message from a process.
_LONGEST_STRING = 4096
_ALIGNMENT = 64  # bytes: a cache line, and more than any type needs
# Where the functions are defined that torch collates with, and ours in the place of one of them.
_TORCHS_OWN = (torch_collate.__name__, "rekindle.run.worker_info")


class MismatchError(Exception):
    """A sample is not built like the one that the layout was made from."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of the batch: type and shape of a sample's part of it.

    `source` is the type that the dataset returns. Strings and bytes have no `dtype` and stay objects;
    `is_long` says that the first was. With `channels_last`, the first dimension is the last one in memory.
    """

    source: type
    dtype: torch.dtype | None
    shape: tuple[int, ...] = ()
    channels_last: bool = False
    is_long: bool = False

    def nbytes(self, rows: int) -> int:
        """The bytes that so many rows take."""
        return 0 if self.dtype is None else rows * self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Branch:
    """A tuple, list, named tuple or dict of parts, any of which may be long; `keys` are set for a dict."""

    source: type
    keys: tuple[Hashable, ...] | None
    parts: tuple[Spec, ...]
    is_long: bool = False


Spec: TypeAlias = Leaf | Branch
Rows: TypeAlias = torch.Tensor | Array  # the rows of a leaf that samples are written to


def describe(sample: Sample) -> Spec | None:
    """How a sample is built, or None if it has a part that only the collate function understands."""
    kind = type(sample)
    if not is_collated_by_torch(kind):
        return None
    if kind in _LEAVES:
        return _LEAVES[kind](sample)
    if isinstance(sample, np.number | np.bool_):
        return _array_leaf(kind, np.asarray(sample))
    if kind is dict:
        parts = [describe(part) for part in sample.values()]
        branch_keys: tuple[Hashable, ...] | None = tuple(sample)
    elif kind in (tuple, list) or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        parts = [describe(part) for part in sample]
        branch_keys = None
    else:
        return None
    known = tuple(part for part in parts if part is not None)
    if len(known) < len(parts):
        return None
    return Branch(kind, branch_keys, known, any(part.is_long for part in known))


def is_collated_by_torch(kind: type) -> bool:
    """Whether no function of a script's is in torch's table for this class (`default_collate_fn_map`)."""
    table = torch_collate.default_collate_fn_map
    if kind in table:
        return table[kind].__module__ in _TORCHS_OWN
    found = next((function for known, function in [*table.items()] if issubclass(kind, known)), None)
    return found is None or found.__module__ in _TORCHS_OWN


def describe_native(example: tuple[Sample, Sample] | None) -> Branch | None:
    """How (image, label) of a native dataset are built, from an example; None if that varies."""
    if example is None:
        return None
    image, label = (describe(part) for part in example)
    if image is None or label is None:  # A script has told torch to collate these in its own way.
        return None
    assert isinstance(image, Leaf)
    if isinstance(example[0], torch.Tensor) and not example[0].is_contiguous():
        image = replace(image, channels_last=True)
    return Branch(tuple, None, (image, label))


def _tensor_leaf(sample: torch.Tensor) -> Leaf | None:
    plain = sample.layout is torch.strided and not sample.is_quantized and not sample.is_nested
    if (
        not plain
        or sample.device.type != "cpu"
        or sample.requires_grad
        or sample.is_conj()
        or sample.is_neg()
    ):
        return None
    return Leaf(torch.Tensor, sample.dtype, tuple(sample.shape))


def _array_leaf(source: type, sample: NDArray[np.generic]) -> Leaf | None:
    try:
        dtype = torch.from_numpy(np.empty(0, dtype=sample.dtype)).dtype
    except (TypeError, ValueError):
        return None
    return Leaf(source, dtype, sample.shape)


def _string_leaf(source: type, sample: str | bytes) -> Leaf:
    return Leaf(source, None, is_long=len(sample) > _LONGEST_STRING)


_LEAVES: dict[type, Callable[[Sample], Leaf | None]] = {
    torch.Tensor: _tensor_leaf,
    np.ndarray: lambda sample: _array_leaf(np.ndarray, sample),
    bool: lambda _: Leaf(bool, torch.bool),
    int: lambda _: Leaf(int, torch.int64),
    float: lambda _: Leaf(float, torch.float64),
    str: lambda sample: _string_leaf(str, sample),
    bytes: lambda sample: _string_leaf(bytes, sample),
}


@dataclass(frozen=True)
class Layout:
    """Where each leaf of a batch of up to `rows` samples lies in its memory."""

    spec: Spec
    rows: int
    leaves: tuple[Leaf, ...] = field(init=False)
    offsets: tuple[int, ...] = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        found = tuple(leaves(self.spec))
        offsets, end = [], 0
        for leaf in found:
            offsets.append(end)
            end += -(-leaf.nbytes(self.rows) // _ALIGNMENT) * _ALIGNMENT
        object.__setattr__(self, "leaves", found)
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "nbytes", max(end, _ALIGNMENT))

    def tensors(self, memory: NDArray[np.uint8], rows: int) -> list[torch.Tensor | None]:
        """The leaves as tensors on `memory`, only the first `rows` of each; None for strings."""
        tensors: list[torch.Tensor | None] = []
        for leaf, offset in zip(self.leaves, self.offsets, strict=True):
            size = leaf.nbytes(rows)
            if leaf.dtype is None:
                tensors.append(None)
            elif size == 0:
                tensors.append(torch.empty((rows, *leaf.shape), dtype=leaf.dtype))
            else:
                flat = torch.from_numpy(memory[offset : offset + size]).view(leaf.dtype)
                if leaf.channels_last:
                    channels, height, width = leaf.shape
                    tensors.append(flat.view(rows, height, width, channels).permute(0, 3, 1, 2))
                else:
                    tensors.append(flat.view(rows, *leaf.shape))
        return tensors


def leaves(spec: Spec) -> list[Leaf]:
    """The leaves in order."""
    if isinstance(spec, Leaf):
        return [spec]
    return [leaf for part in spec.parts for leaf in leaves(part)]


def columns(samples: list[Sample], spec: Spec) -> list[list[Sample]]:
    """The samples leaf by leaf; MismatchError if one is not built as `spec` describes."""
    if isinstance(spec, Leaf):
        return [samples]
    if {*map(type, samples)} - {spec.source} or {*map(len, samples)} - {len(spec.parts)}:
        raise MismatchError
    # Torch's batch has its keys in the order of its own first sample, not in that of the first batch's.
    if spec.keys is not None and samples and tuple(samples[0]) != spec.keys:
        raise MismatchError
    found: list[list[Sample]] = []
    try:
        for number, part in enumerate(spec.parts):
            key = number if spec.keys is None else spec.keys[number]
            found += columns([sample[key] for sample in samples], part)
    except KeyError as error:
        raise MismatchError from error
    return found


def writable(leaf: Leaf, tensor: torch.Tensor) -> Rows:
    """The rows of a leaf as `write` takes them: a slice of an array costs a tenth of one of a tensor."""
    return tensor if leaf.source is torch.Tensor else tensor.numpy()


def write(leaf: Leaf, column: list[Sample], rows: Rows) -> None:
    """Write one column of samples to its rows; MismatchError if one is of another type or shape."""
    if {*map(type, column)} - {leaf.source}:
        raise MismatchError
    if isinstance(rows, torch.Tensor):
        if {value.dtype for value in column} - {leaf.dtype} or _shapes_differ(column, leaf):
            raise MismatchError
        if any(value.requires_grad for value in column):
            raise MismatchError
        torch.stack(column, out=rows)
    elif leaf.source is np.ndarray and leaf.shape:
        _write_arrays(column, leaf.shape, rows)
    elif leaf.source is np.ndarray:
        if {value.dtype for value in column} - {rows.dtype} or _shapes_differ(column, leaf):
            raise MismatchError
        rows[:] = column
    else:
        try:
            rows[:] = column
        except OverflowError as error:  # An integer of more than 64 bits: torch's own message is best.
            raise MismatchError from error


def _write_arrays(column: list[Sample], shape: tuple[int, ...], rows: Array) -> None:
    """Copy arrays to their rows in one call: of small ones, a call for each takes half as long again."""
    if not column:
        return
    first, *others = shape
    target = rows.reshape(len(column) * first, *others)
    try:
        if {*map(len, column)} != {first}:
            raise MismatchError
        np.concatenate(column, out=target, casting="no")
    except (TypeError, ValueError) as error:  # Another type, or other dimensions behind the first.
        raise MismatchError from error


def _shapes_differ(column: list[Sample], leaf: Leaf) -> bool:
    return bool({value.shape for value in column} - {leaf.shape})


def check_strings(leaf: Leaf, column: list[Sample]) -> list[str | bytes]:
    """A column of strings as it is; MismatchError if one is of another type."""
    if {*map(type, column)} - {leaf.source}:
        raise MismatchError
    return column


def assemble(spec: Spec, leaves: list[Batch]) -> Batch:
    """The batch as `default_collate` would return it, from its leaves in order (which are removed)."""
    if isinstance(spec, Leaf):
        return leaves.pop(0)
    parts = [assemble(part, leaves) for part in spec.parts]
    if spec.keys is not None:
        return dict(zip(spec.keys, parts, strict=True))
    # As in torch: strings of a sequence become a tuple, those of a dict a list; a tuple of parts becomes a
    # list, a named tuple stays one.
    parts = [tuple(part) if _is_text(of) else part for part, of in zip(parts, spec.parts, strict=True)]
    return spec.source(*parts) if hasattr(spec.source, "_fields") else parts


def _is_text(spec: Spec) -> bool:
    return isinstance(spec, Leaf) and spec.dtype is None
