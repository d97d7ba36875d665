"""Boxes of JPEGs by our own kernels: the pixels of libjpeg-turbo, or libjpeg-turbo itself."""

import io
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

import rekindle as rk
from photographs import photographs
from rekindle.core import compile_later
from rekindle.core.compiled_code import NotCompiledError
from rekindle.prepare.decode import jpeg_box
from rekindle.prepare.decode.baseline_jpeg import kernel
from rekindle.prepare.decode.decode import decode, read_header
from rekindle.prepare.decode.jpeg import Frame, read_frame
from rekindle.prepare.decode.partial_decode import decode_box

Box = tuple[int, int, int, int]
T = rk.transforms


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """The kernel itself, not what is used until it is there."""
    jpeg_box.compile_box()
    compile_later._retry_at.clear()


def saved(pixels: np.ndarray | Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def pattern(height: int, width: int, seed: int, noise: int) -> np.ndarray:
    """Gradients and edges, with noise of this strength."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    smooth = np.stack([x * 255 // width, y * 255 // height, (x // 7 + y // 5) % 2 * 255], axis=2)
    return (smooth + rng.integers(-noise, noise + 1, smooth.shape)).clip(0, 255).astype(np.uint8)


def ours(data: bytes, box: Box | None = None, *, scratch: bool = False) -> np.ndarray | None:
    frame = read_frame(data)
    whole = 0, 0, frame.height, frame.width
    return jpeg_box.decode_jpeg_box(frame, data, box or whole, scratch=scratch)


def of(image: np.ndarray, box: Box) -> np.ndarray:
    top, left, height, width = box
    return image[top : top + height, left : left + width]


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))


@settings(max_examples=300, deadline=None)
@given(
    st.data(),
    st.integers(1, 90),
    st.integers(8, 90),
    st.sampled_from([0, 1, 2, None]),
    st.integers(1, 100),
    st.sampled_from([0, 20, 300]),
    st.booleans(),
)
def test_every_box_has_the_pixels_of_libjpeg(
    data: st.DataObject,
    height: int,
    width: int,
    subsampling: int | None,
    quality: int,
    noise: int,
    optimize: bool,
) -> None:
    pixels = pattern(height, width, quality, noise)
    settings = {"quality": quality, "optimize": optimize}
    if subsampling is None:
        coded = saved(pixels[..., 2].copy(), **settings)
    else:
        coded = saved(pixels, subsampling=subsampling, **settings)
    expected = simplejpeg.decode_jpeg(coded)
    box = data.draw(boxes(height, width))
    found = ours(coded, box, scratch=data.draw(st.booleans()))
    assert found is not None
    np.testing.assert_array_equal(found, of(expected, box))
    np.testing.assert_array_equal(ours(coded), expected)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_photographs_have_the_pixels_of_libjpeg(subsampling: int) -> None:
    for pixels in photographs():
        data = saved(pixels, quality=92, subsampling=subsampling)
        np.testing.assert_array_equal(ours(data), simplejpeg.decode_jpeg(data))


def adobe(data: bytes, transform: int) -> bytes:
    """The JPEG with a marker of Adobe's in place of JFIF's."""
    assert data[2:4] == b"\xff\xe0"
    rest = data[4 + int.from_bytes(data[4:6], "big") :]
    return data[:2] + b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([transform]) + rest


PIXELS = pattern(40, 50, 0, 9)
PLAIN = saved(PIXELS, quality=90)
OTHERS: dict[str, Callable[[], bytes]] = {
    "progressive": lambda: saved(PIXELS, progressive=True),
    "restarts": lambda: saved(PIXELS, restart_marker_blocks=1),
    "rgb": lambda: saved(PIXELS, keep_rgb=True),
    "adobe rgb": lambda: adobe(saved(PIXELS), 0),
    "440": lambda: simplejpeg.encode_jpeg(PIXELS, colorsubsampling="440"),
    "narrow": lambda: saved(PIXELS[:, :7].copy()),
    "cmyk": lambda: saved(Image.fromarray(PIXELS).convert("CMYK")),
    "two images": lambda: PLAIN + PLAIN,
    "garbage before a marker": lambda: PLAIN.replace(b"\xff\xdb", b"\0\xff\xdb", 1),
    "no end": lambda: PLAIN[:-2],
    "truncated": lambda: PLAIN[: len(PLAIN) * 2 // 3] + b"\xff\xd9",
    "more than there is room for": lambda: PLAIN[:-2] + b"\x12\x34\xff\xd9",
    "restarts that are not announced": lambda: PLAIN[:-40] + b"\xff\xd0" + PLAIN[-40:],
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_plain_and_whole_is_left_to_libjpeg(name: str) -> None:
    assert ours(OTHERS[name]()) is None


def test_adobes_marker_with_ycbcr_is_plain() -> None:
    data = adobe(PLAIN, 1)
    np.testing.assert_array_equal(ours(data), simplejpeg.decode_jpeg(data))


def test_damage_below_the_box_does_not_matter() -> None:
    data = saved(pattern(200, 60, 1, 9), quality=90)
    damaged = data[:-60] + bytes(58) + b"\xff\xd9"
    box = 3, 5, 20, 30
    np.testing.assert_array_equal(ours(damaged, box), of(simplejpeg.decode_jpeg(data), box))
    assert ours(damaged) is None


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2), st.lists(st.tuples(st.integers(20, 10_000), st.integers(0, 255)), max_size=4))
def test_damaged_data_is_decoded_as_libjpeg_does_or_not_at_all(
    subsampling: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(saved(PIXELS, quality=80, subsampling=subsampling))
    for at, value in changes:
        data[max(at % len(data), 20)] = value  # behind JFIF's version, of which libjpeg warns
    try:
        frame = read_frame(data)
        assume(frame.height * frame.width < 1 << 20)
        found = ours(bytes(data))
    except rk.DecodeError:
        return
    if found is not None:
        np.testing.assert_array_equal(found, simplejpeg.decode_jpeg(bytes(data), strict=False))


def huffman_segment(data: bytes, kind: int) -> tuple[int, int]:
    """Where the codes of a table of this kind begin, and how many there are."""
    at = data.index(bytes([0xFF, 0xC4]))
    while data[at + 4] != kind:
        at = data.index(bytes([0xFF, 0xC4]), at + 4)
    return at + 5, sum(data[at + 5 : at + 21])


@pytest.mark.parametrize("kind", [0x00, 0x10, 0x01, 0x11])
def test_tables_that_no_encoder_writes_are_left_to_libjpeg(kind: int) -> None:
    at, count = huffman_segment(PLAIN, kind)
    for lengths in (bytes([count, *[0] * 15]), bytes([3, count - 3, *[0] * 14])):
        assert ours(PLAIN[:at] + lengths + PLAIN[at + 16 :]) is None
    for symbol in (0x0C, 0x0B if kind >> 4 else 0x0F):  # more bits than a coefficient has
        assert ours(PLAIN[: at + 16] + bytes([symbol]) * count + PLAIN[at + 16 + count :]) is None


def test_a_code_of_ones_only_is_left_to_libjpeg() -> None:
    """libjpeg refuses such tables; encoders leave that code out."""
    flat = saved(np.full((16, 16, 3), 77, np.uint8), optimize=True)
    at, count = huffman_segment(flat, 0x10)
    assert count == 1
    begin = at - 5  # of the segment
    full = b"\xff\xc4\0\x15\x10" + bytes([2, *[0] * 15, *flat[at + 16 : at + 17], 1])
    data = flat[:begin] + full + flat[at + 17 :]
    with pytest.raises(ValueError, match="Bogus Huffman table"):
        simplejpeg.decode_jpeg(data)
    assert ours(data) is None


@pytest.mark.parametrize("subsampling", [0, 1, 2, None])
def test_the_same_damage_is_found_with_and_without(
    subsampling: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = pattern(96, 40, 1, 9)
    if subsampling is None:
        data = saved(pixels[..., 2].copy(), quality=90)
    else:
        data = saved(pixels, quality=90, subsampling=subsampling)
    boxes = [(0, 0, bottom, 24) for bottom in range(1, 97)]
    outcomes: list[list[bytes | None]] = []
    for decoder in (jpeg_box.decode_jpeg_box, lambda *_, **__: None):
        monkeypatch.setattr("rekindle.prepare.decode.decode.decode_jpeg_box", decoder)
        monkeypatch.setattr("rekindle.prepare.decode.partial_decode.decode_jpeg_box", decoder)
        outcomes.append([])
        for kept in (0.3, 0.5, 0.7, 0.95):
            damaged = data[: int(len(data) * kept)] + b"\xff\xd9"
            header = read_header(damaged)
            for box in boxes:
                try:
                    image, (top, left, height, width) = decode_box(header, damaged, box, box[2:])
                    outcomes[-1].append(of(image, (top, left, height, width)).tobytes())
                except rk.DecodeError:
                    outcomes[-1].append(None)
    assert outcomes[0] == outcomes[1]
    assert None in outcomes[0]
    assert any(outcomes[0])


def test_coefficients_that_overflow_16_bits_are_left_to_libjpeg() -> None:
    """libjpeg's results depend on the processor then."""
    data = bytearray(saved(pattern(40, 50, 0, 300), quality=100, subsampling=0))
    at = data.index(b"\xff\xdb") + 5
    data[at : at + 64] = bytes([255]) * 64
    assert ours(bytes(data)) is None


def test_results_in_memory_of_their_own_are_kept() -> None:
    first = ours(PLAIN)
    assert first is not None
    assert first.flags.owndata
    before = first.copy()
    ours(saved(255 - PIXELS))
    np.testing.assert_array_equal(first, before)


def test_threads_have_scratch_memory_of_their_own() -> None:
    images = [saved(pattern(60 + n, 70, n, 9), quality=90) for n in range(4)]
    expected = [simplejpeg.decode_jpeg(data) for data in images]
    wrong = []

    def decode_often(number: int) -> None:
        for _ in range(200):
            found = ours(images[number], scratch=True)
            if found is None or not np.array_equal(found, expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=decode_often, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_tall_and_wide_images_do_not_add_up_to_a_large_one() -> None:
    kept = []

    def decode_all() -> None:
        for shape in ((3000, 8), (8, 3000), (3000, 8)):
            assert ours(saved(np.zeros((*shape, 3), np.uint8)), scratch=True) is not None
        assert jpeg_box._kept.scratch is not None
        kept.append(sum(memory.nbytes for memory in jpeg_box._kept.scratch))

    thread = threading.Thread(target=decode_all)  # Scratch memory is a thread's own.
    thread.start()
    thread.join()
    assert 0 < kept[0] < 4 << 20


def test_sizes_that_are_not_those_of_the_data_are_refused() -> None:
    frame = read_frame(PLAIN)
    for lied in (frame._replace(height=39), frame._replace(width=51)):
        assert jpeg_box.decode_jpeg_box(lied, PLAIN, (0, 0, 8, 8), scratch=False) is None
    for box in ((0, 0, 41, 8), (-1, 0, 8, 8), (0, 45, 8, 8), (0, 0, 0, 8)):
        assert ours(PLAIN, box) is None


def test_until_the_kernel_is_there_libjpeg_decodes_and_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_later, "_loaded", {})
    monkeypatch.setattr(compile_later, "_retry_at", {})
    monkeypatch.setattr(compile_later, "_wanted", {})
    monkeypatch.setattr(compile_later, "_asked", set())
    compiled = jpeg_box.compile_box

    def not_there() -> jpeg_box.DecodeBox:
        raise NotCompiledError

    not_there.__module__, not_there.__name__ = compiled.__module__, compiled.__name__
    monkeypatch.setattr(jpeg_box, "compile_box", not_there)
    assert ours(PLAIN) is None
    np.testing.assert_array_equal(decode(PLAIN), simplejpeg.decode_jpeg(PLAIN))
    assert [*compile_later._wanted] == [(compiled.__module__, "compile_box", ())]


def test_a_kernel_that_gives_other_pixels_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = jpeg_box.compile_box()

    def wrong(*arguments: object) -> bool:
        decoded, pixels = right(*arguments), arguments[-1]
        assert isinstance(pixels, np.ndarray)
        pixels[100] ^= 1
        return decoded

    monkeypatch.setattr(kernel, "decode_box", lambda: wrong)
    monkeypatch.setattr(compile_later, "_loaded", {})
    assert ours(PLAIN) is None
    assert "is not used" in caplog.text
    np.testing.assert_array_equal(decode(PLAIN), simplejpeg.decode_jpeg(PLAIN))


def test_raw_images_ask_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("rekindle.prepare.image_dataset.load_box", lambda: asked.append(1))
    (tmp_path / "in" / "a").mkdir(parents=True)
    Image.fromarray(PIXELS).save(tmp_path / "in" / "a" / "0.ppm")
    (tmp_path / "in" / "a" / "0.jpg").write_bytes(PLAIN)
    for ending, count in ((".ppm", 0), (".jpg", 1)):
        files = rk.open(tmp_path / "in", decode=False)
        del files
        asked.clear()
        kept = [path for path in (tmp_path / "in" / "a").iterdir() if path.suffix == ending]
        folder = tmp_path / ending[1:] / "a"
        folder.mkdir(parents=True)
        for path in kept:
            (folder / path.name).write_bytes(path.read_bytes())
        rk.pack(tmp_path / ending[1:], tmp_path / f"{ending[1:]}.tar")
        asked.clear()
        rk.open(tmp_path / f"{ending[1:]}.tar")
        assert len(asked) == count


def test_crops_of_a_dataset_are_the_same_with_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(12):
        height, width = 40 + 7 * number, 90 - 5 * number
        options = {"quality": 60 + 3 * number, "subsampling": number % 3}
        (tmp_path / "a" / f"{number}.jpg").write_bytes(saved(pattern(height, width, number, 20), **options))
    pipelines = [
        [T.RandomResizedCrop(24), T.RandomHorizontalFlip(), T.ToTensor()],
        [T.RandomCrop(30, padding=4, pad_if_needed=True), T.ToTensor()],
        [T.Resize(20), T.CenterCrop(16), T.ToTensor()],
        [T.CenterCrop(30), T.RandAugment(), T.ToTensor()],
    ]
    for steps in pipelines:
        made = []
        for decoder in (jpeg_box.decode_jpeg_box, lambda *_, **__: None):
            monkeypatch.setattr("rekindle.prepare.decode.decode.decode_jpeg_box", decoder)
            monkeypatch.setattr("rekindle.prepare.decode.partial_decode.decode_jpeg_box", decoder)
            loader = rk.DataLoader(rk.open(tmp_path, transform=steps), batch_size=4, shuffle=True, seed=3)
            made.append(b"".join(images.numpy().tobytes() for _ in range(3) for images, _ in loader))
        assert made[0] == made[1]


def test_frames_without_a_number_of_rows_are_not_tried() -> None:
    assert jpeg_box.decode_jpeg_box(Frame(40, 50, 0, True), PLAIN, (0, 0, 8, 8), scratch=False) is None
