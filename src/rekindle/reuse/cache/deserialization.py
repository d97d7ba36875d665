"""Cached values from the bytes that `serialization` made of them; arrays and tensors are not copied.

A header is compiled to a function that reads the buffers. Values of one kind share their header, so this is
done once for all of them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from rekindle.reuse.cache.dtype_text import Json, text_to_dtype
from rekindle.reuse.cache.record import aligned
from rekindle.reuse.cache.serialization import HEADER_LENGTH, TV_TENSORS, Description, Value, find_class

_REMEMBERED = 1 << 16  # bytes of a header whose function is kept

# Restores an image from what `Shrink` returned: how, and the bytes.
Restore: TypeAlias = "Callable[[Description, NDArray[np.uint8]], Value]"


def decode(memory: NDArray[np.uint8], restore: Restore | None = None) -> Value:
    """The value that `encode` made these bytes of; its arrays and tensors still lie in `memory`.

    Bytes that are damaged raise an exception of any kind, or give another value.
    """
    (length,) = HEADER_LENGTH.unpack_from(memory.data)
    end = HEADER_LENGTH.size + length
    header = memory[HEADER_LENGTH.size : end].tobytes()
    # Long headers are rare, and 4096 of them would be a lot to remember.
    read = _compiled(header) if length <= _REMEMBERED else _reader(json.loads(header))
    return read(_Buffers(memory, aligned(end), restore))


class _Buffers:
    """The buffers of a value, in the order in which `encode` wrote them."""

    __slots__ = ("_memory", "_offset", "restore")

    def __init__(self, memory: NDArray[np.uint8], offset: int, restore: Restore | None) -> None:
        self._memory, self._offset, self.restore = memory, offset, restore

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        start, end = self._offset, self._offset + nbytes
        if nbytes == 0:
            return self._memory[:0]
        if nbytes < 0 or end > len(self._memory):
            raise ValueError(f"buffer of {nbytes} bytes at offset {start}, in {len(self._memory)} bytes")
        self._offset = aligned(end)
        return self._memory[start:end]


_Read: TypeAlias = Callable[[_Buffers], Value]


@lru_cache(maxsize=4096)
def _compiled(header: bytes) -> _Read:
    return _reader(json.loads(header))


def _reader(description: Json) -> _Read:
    """What reads the value that is described."""
    kind, *details = _list(description)
    return _READERS[_str(kind)](*details)


# What a file says is checked before it is used.


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError(f"expected a list in the header of a cached value, got {value!r}")
    return value


def _str(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a string in the header of a cached value, got {value!r}")
    return value


def _int(value: Json) -> int:
    if not isinstance(value, int):
        raise ValueError(f"expected an integer in the header of a cached value, got {value!r}")
    return value


def _readers(descriptions: Json) -> list[_Read]:
    return [_reader(description) for description in _list(descriptions)]


# A function for each kind: what reads a value, given the details of its description.


def _constant(value: Value) -> _Read:
    return lambda buffers: value


def _float(text: Json) -> _Read:
    (value,) = struct.unpack("<d", bytes.fromhex(_str(text)))
    return _constant(float(value))


def _complex(text: Json) -> _Read:
    return _constant(complex(*struct.unpack("<dd", bytes.fromhex(_str(text)))))


def _long_str(nbytes: Json) -> _Read:
    length = _int(nbytes)
    return lambda buffers: buffers.take(length).tobytes().decode("utf-8", "surrogatepass")


def _bytes(nbytes: Json) -> _Read:
    length = _int(nbytes)
    return lambda buffers: buffers.take(length).tobytes()


def _bytearray(nbytes: Json) -> _Read:
    length = _int(nbytes)
    return lambda buffers: bytearray(buffers.take(length))


def _scalar(dtype_text: Json, text: Json) -> _Read:
    dtype, content = text_to_dtype(_str(dtype_text)), bytes.fromhex(_str(text))

    def read(buffers: _Buffers) -> Value:
        array = np.frombuffer(content, dtype)[:1] if dtype.itemsize else np.empty(1, dtype)
        scalar: np.generic = array[0]
        return scalar

    return read


def _stored_shape(shape: Json, order: Json) -> tuple[tuple[int, ...], list[int] | None]:
    """The shape in which an array lies in memory, and the order of axes that gives back its own."""
    lengths = [_int(length) for length in _list(shape)]
    if order is None:
        return tuple(lengths), None
    axes = [_int(axis) for axis in _list(order)]
    return tuple(lengths[axis] for axis in axes), [axes.index(axis) for axis in range(len(axes))]


def _array(dtype_text: Json, shape: Json, order: Json) -> _Read:
    dtype = text_to_dtype(_str(dtype_text))
    stored, back = _stored_shape(shape, order)
    nbytes = math.prod(stored) * dtype.itemsize

    def read(buffers: _Buffers) -> NDArray[np.generic]:
        array: NDArray[np.generic]
        array = buffers.take(nbytes).view(dtype).reshape(stored) if nbytes else np.ndarray(stored, dtype)
        return array if back is None else array.transpose(back)

    return read


def _tensor(dtype_name: Json, shape: Json, order: Json) -> Callable[[_Buffers], torch.Tensor]:
    name = _str(dtype_name)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or name.startswith(("q", "bits")):  # Those are no plain numbers.
        raise ValueError(f"torch has no dtype {name!r} of plain numbers")
    stored, back = _stored_shape(shape, order)
    nbytes = math.prod(stored) * dtype.itemsize

    def read(buffers: _Buffers) -> torch.Tensor:
        if nbytes:
            flat = buffers.take(nbytes)
            flat = flat if flat.flags.writeable else flat.copy()
            tensor = torch.from_numpy(flat).view(dtype).view(stored)
        else:
            tensor = torch.empty(stored, dtype=dtype)
        return tensor if back is None else tensor.permute(back)

    return read


def _tv_tensor(name: Json, description: Json) -> _Read:
    kind, *details = _list(description)
    if name not in TV_TENSORS or kind != "tensor":
        raise ValueError(f"torchvision has no tensors of type {name!r}")
    read_tensor, type_name = _tensor(*details), _str(name)

    def read(buffers: _Buffers) -> torch.Tensor:
        from torchvision import tv_tensors

        tensor: torch.Tensor = read_tensor(buffers).as_subclass(getattr(tv_tensors, type_name))
        return tensor

    return read


def _boxes(form: Json, size: Json, clamping: Json, description: Json) -> _Read:
    kind, *details = _list(description)
    if kind != "tensor":
        raise ValueError(f"boxes are a tensor, but this is a {kind!r}")
    read_tensor, canvas_size = _tensor(*details), tuple(_int(length) for length in _list(size))
    more = {} if clamping is None else {"clamping_mode": _str(clamping)}

    def read(buffers: _Buffers) -> torch.Tensor:
        from torchvision import tv_tensors

        boxes: torch.Tensor = tv_tensors.BoundingBoxes(
            read_tensor(buffers), format=_str(form), canvas_size=canvas_size, **more
        )
        return boxes

    return read


def _image(mode: Json, size: Json, nbytes: Json, palette: Json, info: Json) -> _Read:
    width, height = (_int(length) for length in _list(size))
    mode_name, length, read_info = _str(mode), _int(nbytes), _reader(info)
    if width * height > 8 * length:  # A pixel has a bit at least.
        raise ValueError(f"{length} bytes cannot be an image of {width} × {height} pixels")
    palette_mode, palette_length = ("", 0) if palette is None else _palette(palette)
    if width * height > 8 * length:  # Memory for it would be taken before its bytes are looked at.
        raise ValueError(f"an image of {width} × {height} pixels in {length} bytes")

    def read(buffers: _Buffers) -> Image.Image:
        pixels = buffers.take(length).tobytes()
        shape = (width, height)
        image = Image.frombytes(mode_name, shape, pixels) if length else Image.new(mode_name, shape)
        if palette is not None:
            image.putpalette(buffers.take(palette_length).tobytes(), palette_mode)
        return _with_info(image, read_info(buffers))

    return read


def _palette(palette: Json) -> tuple[str, int]:
    mode, nbytes = _list(palette)
    return _str(mode), _int(nbytes)


def _compressed_image(how: Json, nbytes: Json, info: Json = None) -> _Read:
    """An image that a codec compressed."""
    details, length = _list(how), _int(nbytes)
    read_info = None if info is None else _reader(info)

    def read(buffers: _Buffers) -> Value:
        if buffers.restore is None:
            raise ValueError("the image was compressed by another codec")
        image = buffers.restore(details, buffers.take(length))
        return image if read_info is None else _with_info(image, read_info(buffers))

    return read


def _with_info(image: Value, info: Value) -> Image.Image:
    if not isinstance(image, Image.Image) or not isinstance(info, dict):
        raise ValueError(f"expected an image and its info, got {type(image)} and {type(info)}")
    image.info = cast("dict[str | tuple[int, int], Value]", info)
    return image


def _tuple(descriptions: Json) -> _Read:
    readers = _readers(descriptions)
    return lambda buffers: tuple([read(buffers) for read in readers])


def _sequence(descriptions: Json) -> _Read:
    readers = _readers(descriptions)
    return lambda buffers: [read(buffers) for read in readers]


def _dict(keys: Json, descriptions: Json) -> _Read:
    key_readers, readers = _readers(keys), _readers(descriptions)

    def read(buffers: _Buffers) -> Value:
        names = [key(buffers) for key in key_readers]
        return dict(zip(names, [value(buffers) for value in readers], strict=True))

    return read


def _named_tuple(names: Json, fields: Json, descriptions: Json) -> _Read:
    module, name = (_str(part) for part in _list(names))
    field_names, readers = _list(fields), _readers(descriptions)

    def read(buffers: _Buffers) -> Value:
        kind = find_class(module, name)
        make = getattr(kind, "_make", None)
        is_tuple = kind is not None and issubclass(kind, tuple)
        if make is None or not is_tuple or list(getattr(kind, "_fields", ())) != field_names:
            raise ValueError(f"there is no named tuple {module}.{name} with the fields {field_names}")
        value: tuple[Value, ...] = make([value(buffers) for value in readers])
        return value

    return read


_READERS: dict[str, Callable[..., _Read]] = {
    "none": lambda: _constant(None),
    "bool": lambda value: _constant(bool(value)),
    "int": lambda text: _constant(int(_str(text), 16)),
    "float": _float,
    "complex": _complex,
    "str": lambda value: _constant(_str(value)),
    "long_str": _long_str,
    "bytes": _bytes,
    "bytearray": _bytearray,
    "scalar": _scalar,
    "array": _array,
    "tensor": _tensor,
    "wrapped": _tv_tensor,
    "boxes": _boxes,
    "image": _image,
    "picture": _compressed_image,
    "tuple": _tuple,
    "list": _sequence,
    "dict": _dict,
    "named": _named_tuple,
}
