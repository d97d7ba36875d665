"""Cached values come back unchanged: same types, dtypes, shapes, bytes, order of axes in memory."""

import io
import math
from collections import OrderedDict, namedtuple
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from light_torchvision import torchvision
from naming import named
from rekindle import ArgumentError
from rekindle.reuse.cache.codecs import Jpeg, find_codec
from rekindle.reuse.cache.deserialization import decode
from rekindle.reuse.cache.serialization import encode

tv_tensors = torchvision.tv_tensors


class Pair(NamedTuple):
    image: object
    label: object


TORCH_TYPES = [
    torch.uint8,
    torch.bool,
    torch.int64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
]


def identical(one, other):
    """Whether two values are of the same type all the way down, and of the same bytes."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(identical(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(identical, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return one.numel() == 0 or identical(_bytes_of(one), _bytes_of(other))
    if isinstance(one, Image.Image):
        same = one.mode == other.mode and one.size == other.size and one.info == other.info
        return same and one.tobytes() == other.tobytes() and one.getpalette() == other.getpalette()
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (one == other and str(one) == str(other))
    return one == other


def _bytes_of(tensor):
    plain = tensor.as_subclass(torch.Tensor).contiguous().reshape(-1)
    return plain.clone().view(torch.uint8).numpy()


def round_trip(value, codec="raw"):
    packed = find_codec(codec).pack(value)
    memory = packed.joined()
    assert len(memory) == packed.nbytes
    return find_codec(codec).unpack(memory)


@st.composite
def tensors(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    dtype = draw(st.sampled_from(TORCH_TYPES))
    count = math.prod(shape) * dtype.itemsize
    content = draw(st.binary(min_size=count, max_size=count))
    if dtype is torch.bool:
        content = bytes(byte % 2 for byte in content)
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(shape)
    return tensor.permute(draw(st.permutations(range(tensor.ndim))))


@st.composite
def arrays(draw):
    dtypes = st.one_of(
        hnp.scalar_dtypes(), hnp.unicode_string_dtypes(), hnp.byte_string_dtypes(), hnp.array_dtypes()
    )
    array = draw(hnp.arrays(draw(dtypes), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    return array[::-1] if array.ndim and draw(st.booleans()) else array


@st.composite
def images(draw):
    mode = draw(
        st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I", "F", "I;16", "HSV"])
    )
    size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    count = len(Image.new(mode, size).tobytes())
    image = Image.frombytes(mode, size, draw(st.binary(min_size=count, max_size=count)))
    if mode == "P":
        image.putpalette(draw(st.binary(min_size=12, max_size=12)))
    image.info = draw(st.dictionaries(st.text(max_size=5), st.binary(max_size=5) | st.integers(), max_size=2))
    return image


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(st.characters(exclude_categories=[])),  # lone surrogates too
    st.binary(max_size=100),
    arrays(),
    tensors(),
    images(),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)),
)
keys = st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none(), st.tuples(st.integers()))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd"])
@settings(max_examples=150, deadline=None)
@given(value=values)
def test_a_value_comes_back_unchanged(codec, value):
    assert identical(round_trip(value, codec), value)


@given(value=values, at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_give_an_error_or_some_value_but_never_a_crash(value, at, bit):
    memory = encode(value).joined()
    memory[at % min(len(memory), 300)] ^= 1 << bit
    with suppress(Exception):
        decode(memory)


@pytest.mark.parametrize("wrapper", [tv_tensors.Image, tv_tensors.Mask, tv_tensors.Video])
def test_tv_tensors_keep_their_type(wrapper):
    value = wrapper(torch.arange(48, dtype=torch.uint8).reshape(1, 3, 4, 4))
    assert identical(round_trip(value), value)


def test_the_order_of_axes_in_memory_is_kept():
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    assert round_trip(pixels.transpose(2, 0, 1)).strides == pixels.transpose(2, 0, 1).strides
    tensor = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert round_trip(tensor).stride() == tensor.stride()
    assert round_trip(pixels[::-1]).flags.c_contiguous


def test_arrays_and_tensors_that_come_back_are_writable():
    array, tensor = round_trip((np.zeros(3), torch.zeros(3)))
    array += 1
    tensor += 1
    assert array.tolist() == tensor.tolist() == [1, 1, 1]


def test_a_memmap_is_cached_as_an_array(tmp_path):
    mapped = np.memmap(tmp_path / "array", dtype=np.int16, mode="w+", shape=(4, 5))
    mapped[:] = 7
    assert identical(round_trip(mapped), np.full((4, 5), 7, np.int16))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (object(), "builtins.object"),
        ({"a": [{1, 2}]}, "builtins.set"),
        (np.array([object()]), "dtype\\('O'\\)"),
        (np.ma.masked_array([1, 2], [True, False]), r"numpy\.ma.*MaskedArray"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (torch.nn.Parameter(torch.zeros(2)), "Parameter"),
        (torch.zeros(2, requires_grad=True), "detach"),
        (torch.zeros(2).to_sparse(), "sparse"),
        (namedtuple("Hidden", "a b")(1, 2), "Hidden"),
    ],
    ids=named,
)
def test_a_type_that_cannot_be_cached_is_named(value, named):
    with pytest.raises(ArgumentError, match=named):
        encode(value)


def test_a_stored_array_of_objects_is_refused():
    memory = encode(np.zeros(4, np.int64)).joined()
    text = bytes(memory)
    damaged = np.frombuffer(text.replace(b"<i8", b"|O8"), dtype=np.uint8)
    assert bytes(damaged) != text
    with pytest.raises(ValueError, match="O8"):
        decode(damaged)


class NoTuple:
    """Looks like a named tuple, as far as its attributes go."""

    _fields = ("image", "label")
    _make = None


def test_a_stored_name_of_another_class_is_not_called(monkeypatch):
    called = []
    monkeypatch.setattr(NoTuple, "_make", called.append)
    content = bytes(encode(Pair(1, 2)).joined())
    header = content[4:].replace(b'"Pair"', b'"NoTuple"')
    assert header != content[4:]
    memory = np.frombuffer(len(header).to_bytes(4, "little") + header, dtype=np.uint8)
    with pytest.raises(ValueError, match="no named tuple"):
        decode(memory)
    assert not called


def _photograph(height=64, width=48):
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 3, columns * 4, rows + columns], axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    "image",
    [
        _photograph(),
        Image.fromarray(_photograph()),
        torch.from_numpy(_photograph()).permute(2, 0, 1).contiguous(),
        torch.from_numpy(_photograph()).permute(2, 0, 1),
    ],
    ids=["array", "Pillow", "tensor", "channels last"],
)
def test_jpeg_makes_images_small_at_little_loss(image):
    codec = Jpeg(90)
    record = codec.pack((image, 7))
    found, label = codec.unpack(record.joined())
    assert label == 7
    assert type(found) is type(image)
    assert record.nbytes < 0.4 * np.asarray(image).nbytes
    difference = np.abs(np.asarray(found).astype(int) - np.asarray(image))
    assert difference.max() < 30
    assert difference.mean() < 3
    if isinstance(image, torch.Tensor):
        assert found.stride() == image.stride()


def _opened_from_a_file():
    file = io.BytesIO()
    Image.fromarray(_photograph()).save(file, "JPEG", dpi=(72, 72), comment=b"by the sea")
    return Image.open(file)


@pytest.mark.parametrize(
    "read",
    [lambda image: image, lambda image: image.convert("RGB"), lambda image: image.resize((40, 50))],
    ids=["as it is", "converted", "resized"],
)
def test_jpeg_compresses_images_opened_from_files_and_keeps_their_info(read):
    image = read(_opened_from_a_file())
    image.info["no value"] = object()
    packed = Jpeg(90).pack(image)
    assert packed.nbytes < 0.4 * np.asarray(image).nbytes
    found = Jpeg(90).unpack(packed.joined())
    assert found.info == round_trip(image).info
    assert found.info["comment"] == b"by the sea"
    assert found.info["dpi"] == (72, 72)
    assert type(found) is type(round_trip(image))
    assert (found.mode, found.size) == ("RGB", image.size)


@pytest.mark.parametrize(
    "value", [np.zeros((4, 5), np.uint8), np.zeros((4, 5, 3)), np.zeros((0, 4, 3), np.uint8)]
)
def test_jpeg_leaves_other_arrays_as_they_are(value):
    assert identical(round_trip(value, "jpeg"), value)


@pytest.mark.parametrize("codec", ["gzip", "", None])
def test_an_unknown_codec_is_an_error(codec):
    with pytest.raises(ArgumentError, match="codec="):
        find_codec(codec)


def test_a_quality_out_of_range_is_an_error():
    with pytest.raises(ArgumentError, match="quality=0"):
        Jpeg(0)
