"""Decoding: Pillow's result or a clear error, never half an image."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from photographs import photographs
from rekindle.core.limits import Limits
from rekindle.errors import DecodeError
from rekindle.prepare.decode import jpeg
from rekindle.prepare.decode.decode import decode, decode_with, read_header


def picture(width: int = 45, height: int = 37) -> Image.Image:
    """An image with edges, colours and gradients."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    image = Image.fromarray(np.stack([x, y, (x * y) % 256], axis=2).astype(np.uint8))
    ImageDraw.Draw(image).ellipse((2, 2, width // 2, height // 2), fill=(250, 20, 90))
    return image


def saved(image: Image.Image, format: str, **settings: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **settings)
    return buffer.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def sixteen_bits() -> Image.Image:
    return Image.fromarray(np.arange(45 * 37, dtype=np.uint16).reshape(37, 45) * 37)


JPEGS = {
    "420": saved(picture(), "JPEG", quality=85),
    "444": saved(picture(), "JPEG", quality=90, subsampling=0),
    "422": saved(picture(), "JPEG", quality=90, subsampling=1),
    "progressive": saved(picture(), "JPEG", quality=85, progressive=True),
    "restarts": saved(picture(), "JPEG", quality=85, restart_marker_blocks=1),
    "grey": saved(picture().convert("L"), "JPEG"),
    "odd size": saved(picture(17, 9), "JPEG"),
}
# An orientation tag, which Pillow and torchvision leave alone.
TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
FORMATS = {
    **{f"jpeg {name}": data for name, data in JPEGS.items()},
    "jpeg cmyk": saved(picture().convert("CMYK"), "JPEG"),
    "jpeg turned": saved(picture(), "JPEG", exif=TURNED),
    "jpeg after garbage": saved(picture(), "JPEG") + b"garbage" * 5,
    "png": saved(picture(), "PNG"),
    "png grey": saved(picture().convert("L"), "PNG"),
    "png 1 bit": saved(picture().convert("1"), "PNG"),
    "png palette": saved(picture().convert("P"), "PNG"),
    "png palette alpha": saved(picture().convert("P"), "PNG", transparency=3),
    "png alpha": saved(picture().convert("RGBA"), "PNG"),
    "png grey alpha": saved(picture().convert("LA"), "PNG"),
    "png transparent colour": saved(picture(), "PNG", transparency=(250, 20, 90)),
    "png 16 bit": saved(sixteen_bits(), "PNG"),
    "webp": saved(picture(), "WEBP", quality=80),
    "webp lossless": saved(picture(), "WEBP", lossless=True),
    "webp alpha": saved(picture().convert("RGBA"), "WEBP"),
    "bmp": saved(picture(), "BMP"),
    "bmp palette": saved(picture().convert("P"), "BMP"),
    "tiff": saved(picture(), "TIFF"),
    "tiff packed": saved(picture(), "TIFF", compression="tiff_lzw"),
    "tiff cmyk": saved(picture().convert("CMYK"), "TIFF"),
    "tiff 16 bit": saved(sixteen_bits(), "TIFF"),
    "gif": saved(picture().convert("P"), "GIF"),
    "ppm": saved(picture(), "PPM"),
}  # fmt: skip


@pytest.mark.parametrize("data", FORMATS.values(), ids=FORMATS)
def test_every_format_is_decoded_as_pillow_does(data: bytes) -> None:
    expected = by_pillow(data)
    image = decode(data)
    header = read_header(data)
    assert (header.height, header.width, 3) == image.shape
    assert image.dtype == np.uint8
    np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("data", JPEGS.values(), ids=JPEGS)
def test_every_truncation_of_a_jpeg_is_an_error_or_loses_nothing(data: bytes) -> None:
    whole = decode(data)
    for length in range(len(data)):
        try:
            image = decode(data[:length])
        except DecodeError:
            continue
        np.testing.assert_array_equal(image, whole, err_msg=f"truncated to {length} of {len(data)} bytes")


@pytest.mark.parametrize(
    "name", ["png", "png grey", "png alpha", "webp", "webp lossless", "bmp", "tiff packed"]
)
def test_every_truncation_of_other_formats_is_an_error_or_loses_nothing(name: str) -> None:
    data = FORMATS[name]
    whole = decode(data)
    for length in range(0, len(data), max(1, len(data) // 400)):
        try:
            image = decode(data[:length])
        except DecodeError:
            continue
        np.testing.assert_array_equal(image, whole, err_msg=f"truncated to {length} of {len(data)} bytes")


@pytest.mark.parametrize("name", ["jpeg 420", "jpeg progressive", "png", "webp", "tiff packed", "bmp"])
def test_flipped_bytes_never_raise_anything_else(name: str) -> None:
    data, rng = FORMATS[name], np.random.default_rng(0)
    for offset in rng.integers(0, len(data), 300):
        damaged = bytearray(data)
        damaged[offset] ^= int(rng.integers(1, 256))
        try:
            image = decode(bytes(damaged), Limits(pixels=10_000_000))
        except DecodeError:
            continue
        assert image.ndim == 3
        assert image.dtype == np.uint8


def test_a_png_with_a_wrong_checksum_is_not_half_decoded() -> None:
    data = bytearray(FORMATS["png"])
    offset = data.index(b"IDAT") + 40
    data[offset] ^= 0xFF
    with pytest.raises(DecodeError):
        decode(bytes(data))


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xd8", b"hello, world", b"\x89PNG\r\n\x1a\n", bytes(1000)]
)
def test_data_that_is_no_image_is_an_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_decompression_bombs_are_rejected_by_their_headers() -> None:
    size = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + size
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(DecodeError, match="30000 × 30000 pixels exceed the limit"):
        decode(png + struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND")))
    with pytest.raises(DecodeError, match="Limits\\(pixels=1665\\)"):
        decode(JPEGS["420"], Limits(pixels=45 * 37 - 1))
    assert decode(JPEGS["420"], Limits(pixels=45 * 37)).shape == (37, 45, 3)


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_a_jpeg_at_reduced_resolution_is_the_same_picture(shrink: int) -> None:
    data = saved(picture(450, 373), "JPEG", quality=95)
    header = read_header(data)
    small = decode_with(header, data, shrink)
    assert small.shape == (-(-373 // shrink), -(-450 // shrink), 3)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB").reduce(shrink))
    height, width = (min(a, b) for a, b in zip(small.shape[:2], expected.shape[:2], strict=True))
    difference = np.abs(small[:height, :width].astype(int) - expected[:height, :width])
    assert difference.mean() < 4


def test_scratch_memory_is_reused_and_own_memory_is_not() -> None:
    data = JPEGS["444"]
    header = read_header(data)
    first, second = (decode_with(header, data, scratch=True) for _ in range(2))
    assert np.shares_memory(first, second)
    assert not np.shares_memory(decode(data), decode(data))


def test_stray_bytes_in_a_jpeg_are_judged_as_pillow_does() -> None:
    data = JPEGS["420"]
    stray = data[:-2] + bytes(40) + data[-2:]
    np.testing.assert_array_equal(decode(stray), by_pillow(stray))


def test_photographs_equal_pillows() -> None:
    for photograph in photographs():
        data = saved(Image.fromarray(photograph), "JPEG")
        np.testing.assert_array_equal(decode(data), by_pillow(data))


TALL = {
    name: saved(picture(83, 301), "JPEG", quality=85, **settings)
    for name, settings in {
        "420": {},
        "444": {"subsampling": 0},
        "422": {"subsampling": 1},
        "restarts": {"restart_marker_blocks": 3},
        "progressive": {"progressive": True},
    }.items()
} | {"grey": saved(picture(83, 301).convert("L"), "JPEG")}


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
@pytest.mark.parametrize("data", TALL.values(), ids=TALL)
def test_the_first_rows_are_those_of_the_whole_image(data: bytes, shrink: int) -> None:
    header = read_header(data)
    whole = decode_with(header, data, shrink)
    for rows in (1, 2, 15, 16, 17, 100, 250, 300, 301):
        some = decode_with(header, data, shrink, rows, scratch=True)
        count = -(-rows // shrink)
        assert some.shape[0] >= count
        np.testing.assert_array_equal(some[:count], whole[:count], err_msg=f"{rows} rows")


def test_only_the_rows_that_are_needed_are_decoded() -> None:
    data = TALL["420"]
    assert decode_with(read_header(data), data, 1, 100, scratch=True).shape[0] < 130


@pytest.mark.parametrize("name", [name for name in TALL if name != "progressive"])
def test_damage_in_the_rows_that_are_needed_is_detected(name: str) -> None:
    """Otherwise Pillow, too, decodes all of it without an error, with the same result."""
    data, rng = TALL[name], np.random.default_rng(0)
    start = data.index(b"\xff\xda") + 16
    found = 0
    for offset in rng.integers(start, len(data) - 2, 300):
        damaged = bytearray(data)
        damaged[offset] ^= int(rng.integers(1, 256))
        broken = bytes(damaged)
        try:
            some = decode_with(read_header(broken), broken, 1, 150, scratch=True)[:150].copy()
        except DecodeError:
            found += 1
            continue
        try:
            whole = decode(broken)
        except DecodeError:  # further down
            continue
        np.testing.assert_array_equal(some, whole[:150])
    assert found > 0


@pytest.mark.parametrize("data", TALL.values(), ids=TALL)
def test_a_truncated_jpeg_is_an_error_even_if_the_rows_that_are_needed_are_present(data: bytes) -> None:
    whole = decode(data)
    for length in range(len(data) // 2, len(data), 7):
        try:
            some = decode_with(read_header(data[:length]), data[:length], 1, 20, scratch=True)
        except DecodeError:
            continue
        np.testing.assert_array_equal(some, whole, err_msg=f"truncated to {length} of {len(data)} bytes")


@settings(max_examples=150, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 640), st.sampled_from([0, 1, 3, 0xC0, 0xC2, 0xDA, 0xFF])), max_size=2
    ),
    length=st.one_of(st.none(), st.integers(3, 700)),
    quality=st.sampled_from([50, 95]),
)
def test_a_jpeg_header_read_at_once_is_what_its_segments_say(changes, length, quality):
    data = bytearray(saved(picture(), "JPEG", quality=quality))
    for offset, value in changes:
        data[offset % len(data)] = value

    def frame(read):
        try:
            return read(bytes(data[:length]))
        except DecodeError as error:
            return str(error)

    assert frame(jpeg.read_frame) == frame(jpeg._read_segments)
    if not changes and length is None:
        assert jpeg._USUAL(bytes(data)) is not None
