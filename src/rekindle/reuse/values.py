"""A cached value as bytes, and back: a header that says what it is, then its buffers, aligned.

No pickle: what comes from a file can be wrong, but it cannot run. Known are None, bools, numbers, strings,
bytes, NumPy arrays and scalars, tensors (torchvision's included), Pillow images, and tuples, lists, dicts and
named tuples of them; each comes back as the type that it was. Arrays and tensors keep the order of their
axes in memory where they are dense, and are packed where they are not.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from numpy.typing import NDArray
from PIL import Image

from rekindle.errors import ArgumentError

ALIGNMENT = 64  # bytes: a cache line, and more than any type needs
_LENGTH = struct.Struct("<I")
_INLINE = 64  # characters; longer strings lie among the buffers

# What a codec puts in a picture's place: (how to restore it, the bytes), or None to leave the picture be.
Shrink = Callable[[Any], "tuple[list[Any], bytes] | None"]
Restore = Callable[[list[Any], "NDArray[np.uint8]"], Any]


class UnknownTypeError(ArgumentError):
    """A value that cannot be cached; the message names its type."""


@dataclass(frozen=True, slots=True)
class Record:
    """A value as bytes: parts, each of which starts at a multiple of `ALIGNMENT`."""

    parts: list[NDArray[np.uint8]]
    nbytes: int

    def write(self, memory: NDArray[np.uint8]) -> None:
        """Copy all parts to the start of `memory`."""
        start = 0
        for part in self.parts:
            end = start + len(part)
            memory[start:end] = part
            start = aligned(end)

    def joined(self) -> NDArray[np.uint8]:
        """All parts in one piece of memory."""
        memory = np.zeros(self.nbytes, dtype=np.uint8)
        self.write(memory)
        return memory


def aligned(nbytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def encode(value: Any, shrink: Shrink | None = None) -> Record:
    """The value as bytes; UnknownTypeError, which names the type, if it is none that can be stored."""
    parts: list[NDArray[np.uint8]] = []
    spec = _describe(value, parts, shrink)
    text = json.dumps(spec, separators=(",", ":")).encode()
    header = np.frombuffer(_LENGTH.pack(len(text)) + text, dtype=np.uint8)
    parts = [header, *(part for part in parts if len(part))]
    return Record(parts, sum(aligned(len(part)) for part in parts[:-1]) + len(parts[-1]))


def decode(memory: NDArray[np.uint8], restore: Restore | None = None) -> Any:
    """The value that `encode` made these bytes of; its arrays and tensors lie in `memory` still."""
    (length,) = _LENGTH.unpack_from(memory.data)
    end = _LENGTH.size + length
    return _Reader(memory, aligned(end), restore).value(_parsed(memory[_LENGTH.size : end].tobytes()))


@lru_cache(maxsize=4096)
def _parsed(header: bytes) -> list[Any]:
    """What a header says, with all that can be known worked out: values of a kind share their header."""
    return _worked_out(json.loads(header))


def _worked_out(spec: list[Any]) -> list[Any]:
    kind, *rest = spec
    if kind in ("array", "tensor"):
        name, shape, order = rest
        dtype: Any = _dtype(name) if kind == "array" else _torch_dtype(name)
        placed = tuple(shape if order is None else [shape[axis] for axis in order])
        back = None if order is None else [order.index(axis) for axis in range(len(order))]
        return [kind, dtype, placed, math.prod(placed) * dtype.itemsize, back]
    if kind in ("tuple", "list", "dict"):
        return [kind, *([_worked_out(part) for part in parts] for parts in rest)]
    if kind == "named":
        return [*spec[:-1], [_worked_out(part) for part in rest[-1]]]
    if kind in ("wrapped", "image") or (kind == "picture" and len(rest) == 3):
        return [*spec[:-1], _worked_out(rest[-1])]
    return spec


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(name)
    return dtype


def _describe(value: Any, parts: list[NDArray[np.uint8]], shrink: Shrink | None) -> list[Any]:
    shrunk = None if shrink is None else shrink(value)
    if shrunk is not None:
        how, content = shrunk
        picture = ["picture", how, _bytes(content, parts)]
        has_info = isinstance(value, Image.Image) and value.info
        return [*picture, _info(value, parts)] if has_info else picture
    kind = type(value)
    if kind in _LEAVES:
        return _LEAVES[kind](value, parts)
    if kind in (tuple, list):
        return [kind.__name__, [_describe(part, parts, shrink) for part in value]]
    if kind is dict:
        names = [_describe(name, parts, None) for name in value]
        return ["dict", names, [_describe(part, parts, shrink) for part in value.values()]]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        module, name = kind.__module__, kind.__qualname__
        if _find_class(module, name) is not kind:
            raise UnknownTypeError(
                f"a {name} cannot be cached: named tuples are found again by their name, and "
                f"{module}.{name} is not one. Define it at the top level of a module."
            )
        return [
            "named",
            [module, name],
            list(kind._fields),
            [_describe(part, parts, shrink) for part in value],
        ]
    if isinstance(value, np.memmap):
        return _array(value, parts)
    if isinstance(value, np.generic):
        return ["scalar", _dtype_text(value.dtype), value.tobytes().hex()]
    if isinstance(value, torch.Tensor) and kind.__module__.startswith("torchvision.tv_tensors"):
        return _wrapped(value, parts)
    if isinstance(value, Image.Image):
        return _image(value, parts)
    raise UnknownTypeError(
        f"a {kind.__module__}.{kind.__qualname__} cannot be cached. Known are None, bools, numbers, strings, "
        "bytes, NumPy arrays, tensors and Pillow images, and tuples, lists, dicts and named tuples of them: "
        "cut the pipeline where values are of these types."
    )


def _text(value: str, parts: list[NDArray[np.uint8]]) -> list[Any]:
    if len(value) <= _INLINE and value.isascii():
        return ["str", value]
    return ["long_str", _bytes(value.encode("utf-8", "surrogatepass"), parts)]


def _bytes(value: bytes, parts: list[NDArray[np.uint8]]) -> int:
    parts.append(np.frombuffer(value, dtype=np.uint8))
    return len(value)


def _array(value: NDArray[Any], parts: list[NDArray[np.uint8]]) -> list[Any]:
    descr = _dtype_text(value.dtype)
    value = np.asarray(value)
    shape, order = value.shape, None
    if not value.flags.c_contiguous:
        order = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
        if value.transpose(order).flags.c_contiguous:
            value = value.transpose(order)
        else:
            value, order = value.copy(order="C"), None
    parts.append(value.reshape(-1).view(np.uint8) if value.nbytes else np.empty(0, np.uint8))
    return ["array", descr, shape, order]


def _dtype_text(dtype: np.dtype[Any]) -> Any:
    """What `_dtype` makes the same type of; JSON turns its tuples into lists."""
    descr = dtype_to_descr(dtype) if not dtype.hasobject else None
    if descr is None or _dtype(json.dumps(descr)) != dtype:
        raise UnknownTypeError(f"an array of {dtype!r} cannot be cached: its elements are not plain bytes.")
    return json.dumps(descr)


@lru_cache(maxsize=256)
def _dtype(text: str) -> np.dtype[Any]:
    dtype = descr_to_dtype(_with_tuples(json.loads(text)))
    if dtype.hasobject:  # Its bytes would be taken for pointers.
        raise ValueError(text)
    return dtype


def _with_tuples(descr: Any, *, field: bool = False) -> Any:
    if not isinstance(descr, list):
        return descr
    if field:
        name, kind, *shape = descr
        named = tuple(name) if isinstance(name, list) else name
        return (named, _with_tuples(kind), *(tuple(one) for one in shape))
    if len(descr) == 2 and isinstance(descr[1], list) and all(isinstance(one, int) for one in descr[1]):
        return (_with_tuples(descr[0]), tuple(descr[1]))
    return [_with_tuples(one, field=True) for one in descr]


def _tensor(value: torch.Tensor, parts: list[NDArray[np.uint8]]) -> list[Any]:
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise UnknownTypeError(f"only plain tensors on the CPU can be cached, not {value.type()}.")
    if value.requires_grad:
        raise UnknownTypeError("a tensor that requires a gradient cannot be cached: detach() it.")
    value = value.resolve_conj().resolve_neg()
    name, shape, order = str(value.dtype).removeprefix("torch."), list(value.shape), None
    strides = value.stride()
    if not value.is_contiguous():
        order = sorted(range(value.ndim), key=lambda axis: -strides[axis])
        if value.permute(order).is_contiguous():
            value = value.permute(order)
        else:
            value, order = value.contiguous(), None
    if value.numel():
        # Not `view(-1)`: one element counts as contiguous whatever its stride.
        flat = value.as_strided((value.numel(),), (1,)).view(torch.uint8).numpy()
        parts.append(flat)
    return ["tensor", name, shape, order]


def _wrapped(value: torch.Tensor, parts: list[NDArray[np.uint8]]) -> list[Any]:
    """One of torchvision's tensors that know what they are: an image, a mask, a video."""
    name = type(value).__name__
    if name not in _WRAPPED:
        raise UnknownTypeError(f"torchvision's {name} cannot be cached. Known are {', '.join(_WRAPPED)}.")
    return ["wrapped", name, _tensor(value.as_subclass(torch.Tensor), parts)]


_WRAPPED = ("Image", "Mask", "Video")
_MODES = frozenset(
    "1 L LA P PA RGB RGBA RGBX RGBa La CMYK YCbCr LAB HSV I F I;16 I;16L I;16B".split()  # noqa: SIM905
)


def _image(value: Image.Image, parts: list[NDArray[np.uint8]]) -> list[Any]:
    """A Pillow image: pixels, palette, and what is known about it (`info`) where that can be stored."""
    if value.mode not in _MODES:
        raise UnknownTypeError(f"a Pillow image of mode {value.mode!r} cannot be cached: convert() it.")
    size = _bytes(value.tobytes(), parts)
    palette = None
    if value.palette is not None:
        palette = [value.palette.mode, _bytes(bytes(value.palette.getdata()[1]), parts)]
    return ["image", value.mode, value.size, size, palette, _info(value, parts)]


def _info(value: Image.Image, parts: list[NDArray[np.uint8]]) -> list[Any]:
    """What is known about a Pillow image, as far as that can be stored."""
    info = {}
    for name, about in value.info.items():
        try:
            _describe(about, [], None)
        except UnknownTypeError:
            continue
        info[name] = about
    return _describe(info, parts, None)


def _find_class(module: str, name: str) -> Any:
    """The class of that name, if its module is imported: a file cannot make us import anything."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


_LEAVES: dict[type, Callable[[Any, list[NDArray[np.uint8]]], list[Any]]] = {
    type(None): lambda value, parts: ["none"],
    bool: lambda value, parts: ["bool", int(value)],
    int: lambda value, parts: ["int", f"{value:x}"],
    float: lambda value, parts: ["float", struct.pack("<d", value).hex()],
    complex: lambda value, parts: ["complex", struct.pack("<dd", value.real, value.imag).hex()],
    str: _text,
    bytes: lambda value, parts: ["bytes", _bytes(value, parts)],
    bytearray: lambda value, parts: ["bytearray", _bytes(bytes(value), parts)],
    np.ndarray: _array,
    torch.Tensor: _tensor,
}


class _Reader:
    """Goes through the buffers in the order in which `encode` wrote them."""

    def __init__(self, memory: NDArray[np.uint8], start: int, restore: Restore | None) -> None:
        self._memory, self._next, self._restore = memory, start, restore

    def value(self, spec: list[Any]) -> Any:
        return _KINDS[spec[0]](self, *spec[1:])

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        start, end = self._next, self._next + nbytes
        if nbytes == 0:
            return self._memory[:0]
        if nbytes < 0 or end > len(self._memory):
            raise ValueError(f"{nbytes} bytes at {start} of {len(self._memory)}")
        self._next = aligned(end)
        return self._memory[start:end]

    def _none(self) -> None:
        return None

    def _bool(self, value: int) -> bool:
        return bool(value)

    def _int(self, text: str) -> int:
        return int(text, 16)

    def _float(self, text: str) -> float:
        (value,) = struct.unpack("<d", bytes.fromhex(text))
        return float(value)

    def _complex(self, text: str) -> complex:
        return complex(*struct.unpack("<dd", bytes.fromhex(text)))

    def _str(self, value: str) -> str:
        return value

    def _long_str(self, nbytes: int) -> str:
        return self._take(nbytes).tobytes().decode("utf-8", "surrogatepass")

    def _bytes(self, nbytes: int) -> bytes:
        return self._take(nbytes).tobytes()

    def _bytearray(self, nbytes: int) -> bytearray:
        return bytearray(self._take(nbytes))

    def _scalar(self, descr: str, text: str) -> Any:
        dtype = _dtype(descr)
        return np.frombuffer(bytes.fromhex(text), dtype)[0] if dtype.itemsize else np.empty((), dtype)[()]

    def _array(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int, back: list[int] | None
    ) -> NDArray[Any]:
        if nbytes == 0:
            array: NDArray[Any] = np.empty(shape, dtype)
        else:
            array = self._take(nbytes).view(dtype).reshape(shape)
        return array if back is None else array.transpose(back)

    def _tensor(
        self, dtype: torch.dtype, shape: tuple[int, ...], nbytes: int, back: list[int] | None
    ) -> torch.Tensor:
        if nbytes == 0:
            tensor = torch.empty(shape, dtype=dtype)
        else:
            flat = self._take(nbytes)
            flat = flat if flat.flags.writeable else flat.copy()
            tensor = torch.from_numpy(flat).view(dtype).view(shape)
        return tensor if back is None else tensor.permute(back)

    def _wrapped(self, name: str, spec: list[Any]) -> torch.Tensor:
        from torchvision import tv_tensors

        if name not in _WRAPPED:
            raise ValueError(name)
        return self.value(spec).as_subclass(getattr(tv_tensors, name))  # type: ignore[no-any-return]

    def _image(self, mode: str, size: list[int], nbytes: int, palette: Any, info: list[Any]) -> Image.Image:
        width, height = size
        pixels = self._take(nbytes).tobytes()
        image = Image.frombytes(mode, (width, height), pixels) if nbytes else Image.new(mode, (width, height))
        if palette is not None:
            image.putpalette(self._take(palette[1]).tobytes(), palette[0])
        image.info = self.value(info)
        return image

    def _picture(self, how: list[Any], nbytes: int, info: list[Any] | None = None) -> Any:
        if self._restore is None:
            raise ValueError("a picture without a codec")
        picture = self._restore(how, self._take(nbytes))
        if info is not None:
            picture.info = self.value(info)
        return picture

    def _tuple(self, specs: list[Any]) -> tuple[Any, ...]:
        return tuple(self.value(spec) for spec in specs)

    def _list(self, specs: list[Any]) -> list[Any]:
        return [self.value(spec) for spec in specs]

    def _dict(self, names: list[Any], specs: list[Any]) -> dict[Any, Any]:
        keys = [self.value(name) for name in names]
        return dict(zip(keys, (self.value(spec) for spec in specs), strict=True))

    def _named(self, names: list[str], fields: list[str], specs: list[Any]) -> Any:
        kind = _find_class(*names)
        if kind is None or list(getattr(kind, "_fields", ())) != fields or not issubclass(kind, tuple):
            raise ValueError(f"no named tuple {names}")
        return kind._make(self.value(spec) for spec in specs)


_KINDS: dict[str, Callable[..., Any]] = {
    name: getattr(_Reader, f"_{name}")
    for name in (
        *("none", "bool", "int", "float", "complex", "str", "long_str", "bytes", "bytearray", "scalar"),
        *("array", "tensor", "wrapped", "image", "picture", "tuple", "list", "dict", "named"),
    )
}
