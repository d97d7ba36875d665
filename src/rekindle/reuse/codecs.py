"""How values are packed for the store: as they are, compressed without loss, or pictures as JPEG."""

from __future__ import annotations

import importlib
import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from rekindle.errors import ArgumentError
from rekindle.reuse.values import Record, decode, encode

_LENGTH = struct.Struct("<Q")


class Codec(Protocol):
    """Makes a record of a value and a value of a record."""

    @property
    def name(self) -> str: ...

    @property
    def lossy(self) -> bool: ...

    @property
    def in_place(self) -> bool:
        """Whether the arrays of an unpacked value lie in the memory that it was unpacked from."""
        ...

    def pack(self, value: Any) -> Record: ...

    def unpack(self, memory: NDArray[np.uint8]) -> Any: ...


class Raw:
    """Values as they are: nothing to compute."""

    name, lossy, in_place = "raw", False, True

    def pack(self, value: Any) -> Record:
        return encode(value)

    def unpack(self, memory: NDArray[np.uint8]) -> Any:
        return decode(memory)


class Lossless:
    """A record compressed as a whole, by LZ4 (quick) or Zstandard (small)."""

    lossy, in_place = False, False

    def __init__(self, name: str) -> None:
        self.name = name
        self._library = _library(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Lossless, (self.name,)  # A module does not travel, its name does.

    def pack(self, value: Any) -> Record:
        whole = encode(value).joined()
        if self.name == "lz4":
            small = self._library.compress(whole, store_size=False)
        else:
            small = self._library.ZstdCompressor(level=1).compress(whole)
        packed = np.frombuffer(_LENGTH.pack(len(whole)) + small, dtype=np.uint8)
        return Record([packed], len(packed))

    def unpack(self, memory: NDArray[np.uint8]) -> Any:
        (length,) = _LENGTH.unpack_from(memory.data)
        small = memory[_LENGTH.size :].data
        if self.name == "lz4":
            whole = self._library.decompress(small, uncompressed_size=length, return_bytearray=True)
        else:
            whole = bytearray(self._library.ZstdDecompressor().decompress(small, max_output_size=length))
        if len(whole) != length:
            raise ValueError(f"{len(whole)} bytes instead of {length}")
        return decode(np.frombuffer(whole, dtype=np.uint8))


@dataclass(frozen=True)
class Jpeg:
    """Pictures as JPEG, all else as it is: about a tenth of the memory, for a loss that `quality` bounds.

    Pictures are uint8 arrays (height, width, 3), uint8 tensors (3, height, width) and Pillow images of mode
    RGB. What is lost is lost at once: `Store.keep` gives back what later uses will get.
    """

    quality: int = 95

    lossy = True
    in_place = True

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ArgumentError(f"Jpeg(quality={self.quality!r}): take 1 (small) to 100 (good).")

    @property
    def name(self) -> str:
        return f"jpeg-{self.quality}"

    def pack(self, value: Any) -> Record:
        return encode(value, self._shrink)

    def unpack(self, memory: NDArray[np.uint8]) -> Any:
        return decode(memory, _restore)

    def _shrink(self, value: Any) -> tuple[list[Any], bytes] | None:
        kind, pixels = _picture(value)
        if pixels is None:
            return None
        coded: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), self.quality, colorspace="RGB", colorsubsampling="444"
        )
        return [kind, list(pixels.shape)], coded


def _picture(value: Any) -> tuple[str, NDArray[np.uint8] | None]:
    """What a picture is, and its pixels as (height, width, 3)."""
    kind, pixels = "", None
    if type(value) is np.ndarray and value.dtype == np.uint8:
        kind, pixels = "array", value
    elif type(value) is torch.Tensor and value.dtype == torch.uint8 and value.ndim == 3:
        flat = value.permute(1, 2, 0)
        # As torchvision makes them from Pillow images, or as they lie in a batch.
        kind, pixels = ("tensor" if value.is_contiguous() else "channels_last"), flat.numpy()
    elif isinstance(value, Image.Image) and value.mode == "RGB":
        kind, pixels = "image", np.asarray(value)
    if pixels is None or pixels.ndim != 3 or pixels.shape[2] != 3 or not min(pixels.shape[:2]) > 0:
        return kind, None
    return (kind, pixels) if max(pixels.shape[:2]) <= 65500 else (kind, None)


def _restore(how: list[Any], coded: NDArray[np.uint8]) -> Any:
    kind, shape = how
    pixels = simplejpeg.decode_jpeg(coded.data, colorspace="RGB")
    if list(pixels.shape) != shape:
        raise ValueError(f"{pixels.shape} instead of {shape}")
    if kind == "array":
        return pixels
    if kind == "image":
        return Image.fromarray(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tensor if kind == "channels_last" else tensor.contiguous()


def _library(name: str) -> Any:
    module = {"lz4": "lz4.block", "zstd": "zstandard"}[name]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            f"codec={name!r} needs a library that is not installed: pip install 'rekindle[compression]'."
        ) from error


def find_codec(codec: str | Jpeg) -> Codec:
    """The codec of that name, or the one given."""
    if isinstance(codec, Jpeg):
        return codec
    if codec == "raw":
        return Raw()
    if codec == "jpeg":
        return Jpeg()
    if codec in ("lz4", "zstd"):
        return Lossless(codec)
    raise ArgumentError(f"codec={codec!r}: take 'raw', 'lz4', 'zstd', 'jpeg' or Jpeg(quality=...).")
