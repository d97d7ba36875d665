"""Images: they decode to what their header announces, or are refused."""

import struct
import zlib

from hostile.image_mutations import KINDS, judge, seeds

_PNG = b"\x89PNG\r\n\x1a\n"


def check_jpeg(data: bytes) -> None:
    judge(b"\xff\xd8" + data)


def check_image(data: bytes) -> None:
    judge(data)
    if data.startswith(_PNG):
        judge(_with_png_checksums(data))


def jpegs() -> list[bytes]:
    return [image[2:] for image in seeds("jpeg")]


def others() -> list[bytes]:
    return [image for kind in KINDS if kind != "jpeg" for image in seeds(kind)]


def _with_png_checksums(data: bytes) -> bytes:
    """The same chunks, whose checksums are right: hardly any other change gets past them."""
    out, at = bytearray(data), len(_PNG)
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        struct.pack_into(">I", out, end, zlib.crc32(data[at + 4 : end]))
        at = end + 4
    return bytes(out)
