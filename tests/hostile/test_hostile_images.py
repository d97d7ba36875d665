"""Images made to crash, to leak memory or to exhaust it: each is an error for one sample, and no more."""

import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from image_mutations import KINDS, judge, judge_many, picture, saved

import rekindle as rk
from rekindle.prepare.decode import jpeg
from rekindle.prepare.decode.decode import decode, decode_with, read_header
from rekindle.prepare.decode.jpeg_box import compile_box
from rekindle.prepare.steps.antialiased_resize import resample
from rekindle.prepare.steps.point_operations import equalize_table, look_up

T = rk.transforms
compile_box()  # Mutated images are decoded by the kernels, too, in processes that do not compile them.
MUTATIONS = Path(__file__).with_name("image_mutations.py")


def folder(path: Path, **files: bytes) -> Path:
    (path / "a").mkdir(parents=True)
    for name, data in files.items():
        (path / "a" / name.replace("_", ".")).write_bytes(data)
    return path


def two_sizes(real: bytes, height: int, width: int, marker: int = 0x01) -> bytes:
    """A JPEG for libjpeg; of this size for a parser that expects a length after a marker that has none."""
    length = struct.unpack_from(">H", real, 2)[0]
    out = (b"\xff\xd8" + bytes((0xFF, marker)) + real[2:]).ljust(4 + length, b"\0")
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return out + frame + b"\xff\xda" + struct.pack(">H", 12) + bytes(20) + b"\xff\xd9"


# What a JPEG's header says.


@pytest.mark.parametrize("marker", [0x01, 0xD0, 0xD7])
def test_a_jpeg_has_the_size_that_libjpeg_reads(marker: int) -> None:
    real = simplejpeg.encode_jpeg(np.full((8, 300, 3), 7, np.uint8), quality=90)
    data = two_sizes(real, 300, 300, marker)
    header = read_header(data)
    assert (header.height, header.width) == simplejpeg.decode_jpeg_header(data)[:2] == (8, 300)
    np.testing.assert_array_equal(decode(data), decode(real))


def test_fill_bytes_and_garbage_before_a_marker_are_passed_over() -> None:
    real = saved("JPEG")
    for filler in (b"\xff" * 7, b"\0\1\2", b"\xff\0\xff\0", b"\xff\xff\0"):
        data = real.replace(b"\xff\xdb", filler + b"\xff\xdb", 1)
        assert read_header(data)[:2] == (37, 45)
        np.testing.assert_array_equal(decode(data), decode(real))


@pytest.mark.parametrize(
    "segment",
    [
        b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 9, 9, 3) + bytes(9),  # a second frame header
        b"\xff\xfe\0\1",  # a comment shorter than its length
        b"\xff\xd8",
        b"\xff\xd9",
        b"\xff\x02\0\2",  # a reserved marker
        b"\xff\xfe\0\2" * 30_000,
    ],
    ids=["two frames", "length 1", "start", "end", "reserved", "endless"],
)
def test_a_header_that_libjpeg_refuses_is_an_error(segment: bytes) -> None:
    data = saved("JPEG")
    with pytest.raises(rk.DecodeError, match="a corrupt JPEG"):
        read_header(data[:2] + segment + data[2:])


def test_the_limit_of_pixels_is_that_of_the_image_that_is_decoded() -> None:
    real = bytearray(saved("JPEG", progressive=True))
    struct.pack_into(">HH", real, real.index(b"\xff\xc2") + 5, 16000, 16000)
    with pytest.raises(rk.DecodeError, match="16000 × 16000 pixels exceed the limit"):
        decode(two_sizes(bytes(real), 64, 64))


@pytest.mark.parametrize("real", [8, 5000])
def test_a_decoder_that_finds_another_size_than_announced_is_an_error(real: int) -> None:
    data = simplejpeg.encode_jpeg(np.full((real, 300, 3), 7, np.uint8))
    header = read_header(data)
    assert header.frame is not None
    lied = header._replace(height=200, frame=header.frame._replace(height=200))
    with pytest.raises(rk.DecodeError, match="header has"):
        decode_with(lied, data, scratch=True)


def test_rows_that_are_left_out_are_not_taken_from_an_earlier_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decoder of the first rows only warns: what it wrote is compared with what was asked for."""
    data = saved("JPEG", picture(83, 301))
    header = read_header(data)
    assert decode_with(header, data, 1, 20, scratch=True).shape[0] < 100
    monkeypatch.setattr(jpeg.simplejpeg, "decode_jpeg_header", lambda data: (8, 83, "YCbCr", "420"))
    with pytest.raises(rk.DecodeError, match="the decoder found"):
        decode_with(header, data, 1, 20, scratch=True)


@pytest.mark.parametrize("name", ["PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_every_decoder_is_held_to_the_announced_size(name: str) -> None:
    data = saved(name)
    header = read_header(data)
    with pytest.raises(rk.DecodeError, match="header has"):
        decode_with(header._replace(height=header.height + 1), data)


def test_a_jpeg_of_many_scans_is_refused() -> None:
    data = saved("JPEG", progressive=True)
    scan = data.rindex(b"\xff\xda")
    with pytest.raises(rk.DecodeError, match="scans"):
        decode(data[:-2] + data[scan:-2] * 200 + data[-2:])


def test_the_last_chunk_of_a_png_is_not_allocated_as_long_as_it_declares() -> None:
    data = saved("PNG", picture().convert("L"))
    end = data.rindex(b"IEND") - 4
    hostile = data[:end] + struct.pack(">I", (1 << 31) - 1) + data[end + 4 :]
    assert read_header(hostile).decoder == "pillow"
    assert judge(hostile) in ("refused", "decoded")


# What is opened at all.


def test_a_file_that_is_a_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\necho 10.0\ntouch {tmp_path}/ran\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:{os.environ['PATH']}")
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(anything) print\n%%EOF\n"
    dataset = rk.open(folder(tmp_path / "data", x_jpg=program))
    with pytest.raises(rk.DecodeError, match="not a readable image"):
        dataset[0]
    assert not (tmp_path / "ran").exists()


def test_pillow_opens_files_in_one_place() -> None:
    root = Path(rk.__file__).parent
    opens = ["pillow.open(", "Image.open(", "ImageFile.Parser", "PIL.open("]
    found = [path.name for path in root.rglob("*.py") if any(text in path.read_text() for text in opens)]
    assert found == ["pillow_decode.py"]


def test_other_formats_than_those_of_datasets_are_refused() -> None:
    for name in ("ICO", "TGA", "PCX", "PDF", "EPS", "SGI"):
        with pytest.raises(rk.DecodeError, match="not a readable image"):
            decode(saved(name))


def special_file(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path / "data", b_png=saved("PNG"))
    monkeypatch.chdir(root / "a")  # The path of a socket is short.
    special_file(Path("a.jpg"), kind)
    dataset = rk.open(root, [T.Resize((8, 8)), T.ToTensor()])
    loader = rk.DataLoader(dataset, batch_size=1, on_error="skip", num_workers=1, executor="threads")
    assert len(list(loader)) == 1
    with pytest.raises((rk.DataError, OSError), match=r"regular file|No such device"):
        dataset[0]


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_packed_files_are_regular_files(tmp_path: Path, kind: str) -> None:
    special_file(tmp_path / "train.tar", kind)
    with pytest.raises(rk.DataError, match="not a regular file"):
        rk.open(tmp_path / "train.tar")


def test_a_link_to_a_regular_file_is_followed(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", b_png=saved("PNG"))
    (root / "a" / "a.png").symlink_to(root / "a" / "b.png")
    dataset = rk.open(root)
    np.testing.assert_array_equal(dataset[0][0], dataset[1][0])


# The kernels: whatever reaches them, they stay within their arrays.


@pytest.mark.parametrize(
    "grey",
    [lambda image: image[:, :, :1].copy(), lambda image: image[:, :, 0].copy()],
    ids=["one channel", "two axes"],
)
@pytest.mark.parametrize(
    "step",
    [
        T.Resize((32, 32)),
        T.RandomResizedCrop(32),
        T.CenterCrop(8),
        T.Pad(3),
        T.RandomHorizontalFlip(p=1),
        T.Equalize(),
        T.Solarize(3),
        T.ColorJitter(0.5),
        T.RandomRotation(30),
        T.RandomApply([T.Resize((32, 32))], p=1),
    ],
    ids=lambda step: type(step).__name__,
)
def test_an_image_without_three_channels_is_a_clear_error(grey, step) -> None:
    images = np.zeros((1, 64, 64, 3), np.uint8)
    dataset = rk.ArrayImages(images, [0], [T.Lambda(grey), step, T.ToTensor()])
    with pytest.raises(rk.ArgumentError, match=r"the image is a ndarray of uint8 \(64, 64"):
        dataset[0]
    inside = rk.ArrayImages(images, [0], [T.RandomApply([T.Lambda(grey), step], p=1), T.ToTensor()])
    with pytest.raises(rk.ArgumentError, match=r"the image is a ndarray of uint8 \(64, 64"):
        inside[0]


def test_a_function_may_return_one_channel_if_a_tensor_follows() -> None:
    images = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(1, 64, 64, 3)
    one = T.Lambda(lambda image: image[:, :, :1])
    made = rk.ArrayImages(images, [0], [T.Resize((32, 32)), one, T.ToTensor(), T.Normalize([0.5], [0.5])])[0][
        0
    ]
    assert made.shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("shape", "box", "size"),
    [
        ((8, 8, 1), (0, 0, 8, 8), (4, 4)),
        ((8, 8), (0, 0, 8, 8), (4, 4)),
        ((8, 8, 3), (0, 0, 9, 8), (4, 4)),
        ((8, 8, 3), (0, 4, 8, 8), (4, 4)),
        ((8, 8, 3), (-1, 0, 8, 8), (4, 4)),
        ((8, 8, 3), (0, 0, 0, 8), (4, 4)),
        ((8, 8, 3), (0, 0, 8, 8), (0, 4)),
    ],
)
def test_a_resize_stays_within_the_image(shape, box, size) -> None:
    with pytest.raises(rk.ArgumentError, match="cannot resize"):
        resample(np.zeros(shape, np.uint8), box, size)
    with pytest.raises(rk.ArgumentError, match="cannot resize"):
        resample(np.zeros((8, 8, 3), np.float32), (0, 0, 8, 8), (4, 4))  # type: ignore[arg-type]


def test_tables_are_for_three_channels() -> None:
    for image in (np.zeros((9, 9, 1), np.uint8), np.zeros((9, 9), np.uint8), np.zeros((0, 9, 3), np.uint8)):
        with pytest.raises(rk.ArgumentError, match="Give RGB bytes"):
            look_up(image, np.arange(256, dtype=np.uint8))
        with pytest.raises(rk.ArgumentError, match="Give RGB bytes"):
            equalize_table(image)


def test_stored_pixels_without_any_are_an_error() -> None:
    from rekindle.prepare.pipeline import Pipeline

    with pytest.raises(rk.DecodeError, match="is no image"):
        Pipeline([T.Resize((4, 4)), T.ToTensor()]).make(np.zeros((0, 4, 3), np.uint8), np.empty(0))


# Mutations of the structure: ours and libjpeg's parser agree, and nothing but our error is raised.


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "count"), [(kind, 300 if kind == "jpeg" else 60) for kind in KINDS])
def test_mutated_images_are_decoded_as_announced_or_refused(kind: str, count: int) -> None:
    decoded, wrong = judge_many(kind, seed=1, count=count)
    assert not wrong
    assert 0 < decoded < count


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutated_images_in_limited_memory(kind: str, seed: int) -> None:
    count = 5_000 if kind == "jpeg" else 500
    command = [sys.executable, "-W", "ignore", str(MUTATIONS), kind, str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
