"""What a sample may cost: sizes are bounded before anything is allocated."""

import os
import stat
import struct
from pathlib import Path

import numpy as np
import pytest
from image_mutations import picture, saved
from PIL import Image

import rekindle as rk
from rekindle.prepare.decode.decode import decode, read_header

T = rk.transforms


def folder(path: Path, **files: bytes) -> Path:
    (path / "a").mkdir(parents=True)
    for name, data in files.items():
        (path / "a" / name.replace("_", ".")).write_bytes(data)
    return path


# What a sample may cost.


def test_a_file_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", x_jpg=b"")
    os.truncate(root / "a" / "x.jpg", 2 << 40)
    assert stat.S_ISREG((root / "a" / "x.jpg").stat().st_mode)
    for transform in (None, [T.Resize((8, 8)), T.ToTensor()]):
        with pytest.raises(rk.DecodeError, match=r"x\.jpg.*Limits\(encoded_bytes=2199023255552\)"):
            rk.open(root, transform)[0]
    with pytest.raises(rk.DecodeError, match=r"x\.jpg.*exceed the limit of 1,073,741,824"):
        rk.open(root, decode=False)[0]


def test_a_remote_object_larger_than_allowed_is_not_read() -> None:
    import fsspec

    data, root = saved("PNG"), "memory://larger-than-allowed"
    system = fsspec.filesystem("memory")
    system.pipe({"/larger-than-allowed/a/x.png": data, "/larger-than-allowed/a/y.png": data + bytes(9)})
    remote, limits = rk.RemoteOptions(cache_bytes=0), rk.Limits(encoded_bytes=len(data))
    dataset = rk.open(root, remote=remote, limits=limits)
    dataset.will_need([0, 1])
    assert dataset[0][0].shape == (37, 45, 3)
    with pytest.raises(rk.DecodeError, match=r"y\.png.*exceed the limit"):
        dataset[1]


def test_a_raised_limit_admits_what_it_says(tmp_path: Path) -> None:
    data = saved("PNG", picture(100, 60))
    root = folder(tmp_path / "data", x_png=data)
    for limits, steps in (
        (rk.Limits(encoded_bytes=len(data) - 1), []),
        (rk.Limits(pixels=5_999), []),
        (rk.Limits(pixels=23_999), [T.Resize((120, 200))]),
        (rk.Limits(pixels=23_999), [T.CenterCrop(10), T.RandomApply([T.Resize((120, 200))], p=1)]),
    ):
        with pytest.raises(rk.DecodeError, match="exceed the limit"):
            rk.open(root, steps, limits=limits)[0]
    limits = rk.Limits(encoded_bytes=len(data), pixels=24_000)
    assert rk.open(root, [T.Resize((120, 200))], limits=limits)[0][0].shape == (120, 200, 3)


def test_limits_are_positive_numbers() -> None:
    for wrong in ({"pixels": 0}, {"encoded_bytes": 1.5}, {"seconds": -1.0}, {"array_bytes": None}):
        with pytest.raises(rk.ArgumentError, match="Give a positive number"):
            rk.Limits(**wrong)


THIN = saved("PNG", Image.new("RGB", (4000, 1)))


@pytest.mark.parametrize(
    "steps",
    [
        [T.Resize(256), T.CenterCrop(224), T.ToTensor()],
        [T.RandomHorizontalFlip(), T.Resize(256), T.ToTensor()],
        [T.RandomApply([T.Resize(256)], p=1), T.ToTensor()],
        [T.Pad((0, 30_000, 0, 0)), T.ToTensor()],
        [T.RandomHorizontalFlip(), T.Pad((0, 30_000, 0, 0)), T.Invert(), T.Resize((8, 8))],
        [T.RandomCrop((60_000, 8), pad_if_needed=True, padding_mode="reflect"), T.ToTensor()],
        [T.Resize((30_000, 8)), T.ToTensor()],
    ],
    ids=["resize", "later", "within", "pad", "pad later", "reflect", "between two passes"],
)
def test_a_step_makes_no_image_larger_than_allowed(tmp_path: Path, steps: list) -> None:
    dataset = rk.open(folder(tmp_path / "data", x_png=THIN), steps)
    with pytest.raises(rk.DecodeError, match=r"x\.png.* pixels after \w+ exceed the limit of 89,478,485"):
        dataset[0]


def test_an_expanded_rotation_is_no_larger_than_allowed(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", x_png=saved("PNG", Image.new("L", (30_000, 1))))
    dataset = rk.open(root, [T.RandomRotation((45, 45), expand=True), T.ToTensor()])
    with pytest.raises(rk.DecodeError, match="pixels after RandomRotation exceed"):
        dataset[0]


def webp_canvas(width: int, height: int) -> bytes:
    """An animated WebP with a canvas of this size and one small frame."""
    data = bytearray(saved("WEBP", save_all=True, append_images=[picture().rotate(90)]))
    assert data[12:16] == b"VP8X"
    data[24:30] = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    return bytes(data)


def test_the_canvas_of_an_animation_is_bounded_before_it_is_allocated() -> None:
    assert decode(webp_canvas(60, 50)).shape == (50, 60, 3)
    with pytest.raises(rk.DecodeError, match="canvases of an animation exceed"):
        read_header(webp_canvas(9000, 9000))


@pytest.mark.parametrize("name", ["WEBP", "GIF", "PNG", "TIFF"])
def test_only_the_first_of_many_frames_is_decoded(name: str) -> None:
    first = picture().convert("P")
    frames = [first.point(lambda value, by=by: (value + by) % 256) for by in range(1, 60)]
    still, many = saved(name, first), saved(name, first, save_all=True, append_images=frames)
    if name == "WEBP":  # lossy
        assert decode(many).shape == (37, 45, 3)
    else:
        np.testing.assert_array_equal(decode(many), decode(still))


def test_a_tile_of_a_tiff_is_no_larger_than_an_image() -> None:
    data = bytearray(saved("TIFF", compression="tiff_deflate"))
    assert decode(bytes(data)).shape == (37, 45, 3)
    (directory,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, directory)
    for number in range(count):
        at = directory + 2 + 12 * number
        (tag,) = struct.unpack_from("<H", data, at)
        if tag in (273, 278):  # the strips become tiles, wider and higher than memory
            struct.pack_into("<HHII", data, at, {273: 322, 278: 323}[tag], 4, 1, 60_000)
    with pytest.raises(rk.DecodeError):
        decode(bytes(data))
