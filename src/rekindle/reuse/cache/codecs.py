"""How values are stored: as they are, losslessly compressed, or images as JPEG."""

from __future__ import annotations

import importlib
import math
import struct
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from rekindle.core.given_numbers import integer_of
from rekindle.errors import ArgumentError, MissingPackageError
from rekindle.prepare.rgb import is_rgb
from rekindle.reuse.cache.deserialization import decode
from rekindle.reuse.cache.dtype_text import Json
from rekindle.reuse.cache.record import Record
from rekindle.reuse.cache.serialization import Description, Value, encode

_LENGTH = struct.Struct("<Q")
_MAX_SIDE = 65500  # pixels that a JPEG can be wide or high
_MOST_TIMES = {"lz4": 256, "zstd": 1 << 16, "jpeg": 512}  # as many bytes as the compressed ones can stand for


class Codec(Protocol):
    """Makes records of values, and values of records."""

    @property
    def name(self) -> str: ...

    @property
    def lossy(self) -> bool: ...

    @property
    def in_place(self) -> bool:
        """Whether the arrays of an unpacked value lie in the memory that it was unpacked from."""
        ...

    def pack(self, value: object) -> Record:
        """The value as bytes; UnknownTypeError if it is of a type that cannot be cached."""
        ...

    def unpack(self, memory: NDArray[np.uint8]) -> Value:
        """The value that was packed."""
        ...


class Raw:
    """Values as they are."""

    name, lossy, in_place = "raw", False, True

    def pack(self, value: object) -> Record:
        return encode(value)

    def unpack(self, memory: NDArray[np.uint8]) -> Value:
        return decode(memory)


class Lossless:
    """Records compressed by LZ4 (fast) or Zstandard (small)."""

    lossy, in_place = False, False

    def __init__(self, name: str) -> None:
        self.name = name
        self._library = _library(name)

    def __reduce__(self) -> tuple[type[Lossless], tuple[str]]:
        return Lossless, (self.name,)  # A module cannot be pickled.

    def pack(self, value: object) -> Record:
        whole = encode(value).joined()
        if self.name == "lz4":
            small = self._library.compress(whole, store_size=False)
        else:
            small = self._library.ZstdCompressor(level=1).compress(whole)
        packed = np.frombuffer(_LENGTH.pack(len(whole)) + small, dtype=np.uint8)
        return Record.of([packed])

    def unpack(self, memory: NDArray[np.uint8]) -> Value:
        (length,) = _LENGTH.unpack_from(memory.data)
        small = memory[_LENGTH.size :].data
        if length > _MOST_TIMES[self.name] * len(small):  # Damage must not decide how much is allocated.
            raise ValueError(f"{len(small)} bytes cannot be {length} after decompression")
        if self.name == "zstd" and self._library.frame_content_size(small) != length:
            raise ValueError(f"expected {length} bytes after decompression")
        if self.name == "lz4":
            whole = self._library.decompress(small, uncompressed_size=length, return_bytearray=True)
        else:
            whole = bytearray(self._library.ZstdDecompressor().decompress(small, max_output_size=length))
        if len(whole) != length:
            raise ValueError(f"expected {length} bytes after decompression, got {len(whole)}")
        return decode(np.frombuffer(whole, dtype=np.uint8))


@dataclass(frozen=True)
class Jpeg:
    """Images as JPEG, other values as they are: about a tenth of the memory, at a loss set by `quality`.

    Images are uint8 arrays (height, width, 3), uint8 tensors (3, height, width) and RGB Pillow images. The
    loss shows from the first use on: `Store.keep` returns what later uses will get.
    """

    quality: int = 95

    lossy = True
    in_place = True

    def __post_init__(self) -> None:
        quality = integer_of(self.quality)
        if quality is None or not 1 <= quality <= 100:
            raise ArgumentError(
                f"Jpeg(quality={self.quality!r}): give an integer from 1 (small) to 100 (good)."
            )
        object.__setattr__(self, "quality", quality)

    @property
    def name(self) -> str:
        return f"jpeg-{self.quality}"

    def pack(self, value: object) -> Record:
        return encode(value, self._shrink)

    def unpack(self, memory: NDArray[np.uint8]) -> Value:
        return decode(memory, _restore)

    def _shrink(self, value: object) -> tuple[Description, bytes] | None:
        kind, pixels = _image_kind(value)
        if pixels is None:
            return None
        coded: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), self.quality, colorspace="RGB", colorsubsampling="444"
        )
        return [kind, list(pixels.shape)], coded


def _image_kind(value: object) -> tuple[str, NDArray[np.uint8] | None]:
    """The kind of an image, and its pixels as (height, width, 3); None if it cannot be a JPEG."""
    kind, pixels = "", None
    if type(value) is np.ndarray and value.dtype == np.uint8:
        kind, pixels = "array", value
    elif type(value) is torch.Tensor and value.dtype == torch.uint8 and value.ndim == 3:
        flat = value.permute(1, 2, 0)
        # As torchvision makes them from Pillow images, or as they lie in a batch.
        kind, pixels = ("tensor" if value.is_contiguous() else "channels_last"), flat.numpy()
    elif isinstance(value, Image.Image) and value.mode == "RGB":
        kind, pixels = "image", np.asarray(value)
    if not is_rgb(pixels) or not min(pixels.shape[:2]) > 0:
        return kind, None
    return (kind, pixels) if max(pixels.shape[:2]) <= _MAX_SIDE else (kind, None)


def _restore(how: Description, coded: NDArray[np.uint8]) -> Value:
    kind, shape = how
    nbytes = _jpeg_bytes(shape)
    if nbytes > _MOST_TIMES["jpeg"] * len(coded):
        raise ValueError(f"{len(coded)} bytes cannot be an image of shape {shape}")
    # Exactly as large as announced: if the decoder needs more, it says so instead of writing.
    memory = np.empty(nbytes, dtype=np.uint8)
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(coded.data, colorspace="RGB", buffer=memory)
    if list(pixels.shape) != shape:
        raise ValueError(f"expected an image of shape {shape}, got {pixels.shape}")
    if kind == "array":
        return pixels
    if kind == "image":
        return Image.fromarray(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tensor if kind == "channels_last" else tensor.contiguous()


def _jpeg_bytes(shape: Json) -> int:
    """The bytes of an image of this shape; ValueError if no image has it."""
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(type(one) is int and one > 0 for one in shape)
    ):
        raise ValueError(f"{shape!r:.80} is not the shape of an image")
    return math.prod(shape)


def _library(name: str) -> ModuleType:
    module = {"lz4": "lz4.block", "zstd": "zstandard"}[name]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"codec={name!r} needs a library that is not installed: pip install 'rekindle[compression]'."
        ) from error


def find_codec(codec: str | Jpeg) -> Codec:
    """The codec of that name, or the one given; ArgumentError if there is none."""
    if isinstance(codec, Jpeg):
        return codec
    if codec == "raw":
        return Raw()
    if codec == "jpeg":
        return Jpeg()
    if codec in ("lz4", "zstd"):
        return Lossless(codec)
    raise ArgumentError(f"codec={codec!r}: give 'raw', 'lz4', 'zstd', 'jpeg' or Jpeg(quality=...).")
