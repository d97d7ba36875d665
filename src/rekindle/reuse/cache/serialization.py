"""A cached value as bytes: a header that describes it, then its buffers, aligned. `deserialization` reads it.

No pickle: what comes from a file can be wrong, but it cannot execute code. Supported are None, bools,
numbers, strings, bytes, NumPy arrays and scalars, tensors (torchvision's included), Pillow images, and
tuples, lists, dicts and named tuples of them; each comes back as the type that it was. Arrays and tensors
keep the order of their axes in memory where they are dense, and are made contiguous where they are not.

The header is JSON: a description is a list of a kind ("array", "tuple", …) and what that kind needs.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from rekindle.reuse.cache.dtype_text import Json, dtype_to_text
from rekindle.reuse.cache.record import Record, UnknownTypeError

HEADER_LENGTH = struct.Struct("<I")
TV_TENSORS = ("Image", "Mask", "Video")  # of torchvision
BOXES = "BoundingBoxes"
_HEADER = json.JSONEncoder(separators=(",", ":"))
_INLINE = 64  # characters; longer strings lie among the buffers
_IMAGE_MODES = frozenset(
    "1 L LA P PA RGB RGBA RGBX RGBa La CMYK YCbCr LAB HSV I F I;16 I;16L I;16B".split()  # noqa: SIM905
)

# The types that come back; a subtype of them that is not listed above cannot be cached.
Value: TypeAlias = (
    "bool | int | float | complex | str | bytes | bytearray | NDArray[np.generic] | np.generic "
    "| torch.Tensor | Image.Image | tuple[Value, ...] | list[Value] | dict[Value, Value] | None"
)
Description: TypeAlias = Sequence[Json]
Buffers: TypeAlias = list[NDArray[np.uint8]]
# Compresses an image: (how to restore it, the bytes); None leaves a value as it is.
Shrink: TypeAlias = "Callable[[object], tuple[Description, bytes] | None]"


def encode(value: object, shrink: Shrink | None = None) -> Record:
    """The value as bytes; UnknownTypeError, which names the type, if it cannot be cached."""
    buffers: Buffers = []
    text = _HEADER.encode(_describe(value, buffers, shrink)).encode()
    header = np.frombuffer(HEADER_LENGTH.pack(len(text)) + text, dtype=np.uint8)
    return Record.of([header, *filter(len, buffers)])


def find_class(module: str, name: str) -> type | None:
    """The class of that name, if its module is imported: a file cannot make us import anything."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _describe(value: object, buffers: Buffers, shrink: Shrink | None) -> Description:
    """What `value` is; its bytes are added to `buffers`."""
    shrunk = None if shrink is None else shrink(value)
    if shrunk is not None:
        how, content = shrunk
        description: list[Json] = ["picture", how, _add(content, buffers)]
        if isinstance(value, Image.Image) and value.info:
            description.append(_info(value, buffers))
        return description
    # Exact types, since a subclass would come back as another type.
    if type(value) is np.ndarray or isinstance(value, np.memmap):
        return _array(value, buffers)
    if type(value) is torch.Tensor:
        return _tensor(value, buffers)
    if type(value) is tuple or type(value) is list:
        return [type(value).__name__, [_describe(part, buffers, shrink) for part in value]]
    if type(value) is dict:
        keys = [_describe(key, buffers, None) for key in value]
        return ["dict", keys, [_describe(part, buffers, shrink) for part in value.values()]]
    scalar = _scalar(value, buffers)
    if scalar is not None:
        return scalar
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _named_tuple(value, tuple(value._fields), buffers, shrink)
    if isinstance(value, torch.Tensor) and type(value).__module__.startswith("torchvision.tv_tensors"):
        return _tv_tensor(value, buffers)
    if isinstance(value, Image.Image):
        return _image(value, buffers)
    raise UnknownTypeError(
        f"a {type(value).__module__}.{type(value).__qualname__} cannot be cached. Supported are None, bools, "
        "numbers, strings, bytes, NumPy arrays, tensors and Pillow images, and tuples, lists, dicts and "
        "named tuples of them: split the pipeline where values are of these types."
    )


def _scalar(value: object, buffers: Buffers) -> Description | None:
    """A number, a string or bytes; None if the value is something else."""
    if value is None:
        return ["none"]
    if type(value) is bool:
        return ["bool", int(value)]
    if type(value) is int:
        return ["int", f"{value:x}"]
    if type(value) is float:
        return ["float", struct.pack("<d", value).hex()]
    if type(value) is complex:
        return ["complex", struct.pack("<dd", value.real, value.imag).hex()]
    if type(value) is str:
        if len(value) <= _INLINE and value.isascii():
            return ["str", value]
        return ["long_str", _add(value.encode("utf-8", "surrogatepass"), buffers)]
    if type(value) is bytes:
        return ["bytes", _add(value, buffers)]
    if type(value) is bytearray:
        return ["bytearray", _add(bytes(value), buffers)]
    if isinstance(value, np.generic):
        return ["scalar", dtype_to_text(value.dtype), value.tobytes().hex()]
    return None


def _add(content: bytes, buffers: Buffers) -> int:
    buffers.append(np.frombuffer(content, dtype=np.uint8))
    return len(content)


def _array(value: NDArray[np.generic], buffers: Buffers) -> Description:
    dtype = dtype_to_text(value.dtype)
    value = np.asarray(value)
    shape, order = value.shape, None
    if not value.flags.c_contiguous:
        order = sorted(range(value.ndim), key=lambda axis: -value.strides[axis])
        if value.transpose(order).flags.c_contiguous:
            value = value.transpose(order)
        else:
            value, order = value.copy(order="C"), None
    buffers.append(value.reshape(-1).view(np.uint8) if value.nbytes else np.empty(0, np.uint8))
    return ["array", dtype, shape, order]


def _tensor(value: torch.Tensor, buffers: Buffers) -> Description:
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise UnknownTypeError(f"only dense tensors on the CPU can be cached, not {value.type()}.")
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
        buffers.append(value.as_strided((value.numel(),), (1,)).view(torch.uint8).numpy())
    return ["tensor", name, shape, order]


def _tv_tensor(value: torch.Tensor, buffers: Buffers) -> Description:
    """A tensor of torchvision's own types: an image, a mask, a video."""
    name = type(value).__name__
    if name == BOXES:
        return _boxes(value, buffers)
    if name not in TV_TENSORS:
        raise UnknownTypeError(
            f"torchvision's {name} cannot be cached. Supported are {', '.join((*TV_TENSORS, BOXES))}."
        )
    return ["wrapped", name, _tensor(value.as_subclass(torch.Tensor), buffers)]


def _boxes(value: Any, buffers: Buffers) -> Description:
    """Boxes in an image: numbers, what they mean, the image's size, how boxes beyond its edge are treated."""
    clamping: str | None = getattr(value, "clamping_mode", None)
    tensor = _tensor(value.as_subclass(torch.Tensor), buffers)
    return ["boxes", value.format.value, list(value.canvas_size), clamping, tensor]


def _named_tuple(
    value: tuple[object, ...], fields: tuple[str, ...], buffers: Buffers, shrink: Shrink | None
) -> Description:
    module, name = type(value).__module__, type(value).__qualname__
    if find_class(module, name) is not type(value):
        raise UnknownTypeError(
            f"a {name} cannot be cached: named tuples are looked up by name, and {module}.{name} is not one. "
            "Define it at the top level of a module."
        )
    return ["named", [module, name], fields, [_describe(part, buffers, shrink) for part in value]]


def _image(value: Image.Image, buffers: Buffers) -> Description:
    """A Pillow image: pixels, palette, and its `info` as far as that can be cached."""
    if value.mode not in _IMAGE_MODES:
        raise UnknownTypeError(f"a Pillow image of mode {value.mode!r} cannot be cached: convert() it.")
    nbytes = _add(value.tobytes(), buffers)
    palette: Description | None = None
    if value.palette is not None:
        palette = [value.palette.mode, _add(bytes(value.palette.getdata()[1]), buffers)]
    return ["image", value.mode, value.size, nbytes, palette, _info(value, buffers)]


def _info(value: Image.Image, buffers: Buffers) -> Description:
    """An image's `info`, without what cannot be cached."""
    info = {}
    for name, about in value.info.items():
        try:
            _describe(about, [], None)
        except UnknownTypeError:
            continue
        info[name] = about
    return _describe(info, buffers, None)
