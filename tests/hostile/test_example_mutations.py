"""Examples of TFRecord files, changed by their structure: what Google's library reads, or an error."""

import numpy as np
import pytest
from packed_mutations import Field, feature, message, mutated_example, record

from hostile_packs import InMemory
from rekindle.errors import RekindleError
from rekindle.fetch.packed.source import Packed
from rekindle.fetch.packed.tfrecord.index import index_tfrecord


def protobuf_sample(content: bytes) -> tuple[bytes, int] | None:
    from google.protobuf.message import DecodeError
    from tfrecord import example_pb2

    example = example_pb2.Example()
    try:
        example.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError):
        return None
    found = example.features.feature
    image, label = found.get("image/encoded"), found.get("image/class/label")
    if image is None or label is None or not image.bytes_list.value or not label.int64_list.value:
        return None
    return image.bytes_list.value[0], label.int64_list.value[0]


def our_sample(content: bytes) -> tuple[bytes, int] | None:
    first = message(
        [(1, 2, [feature(b"image/encoded", 1, b"\xff\xd8"), feature(b"image/class/label", 3, 0)])]
    )
    try:
        data = record(first) + record(content)
        source = Packed("packed", [InMemory(data)], index_tfrecord, keep_index=False)
        return bytes(source.read(1)), source.target(1)
    except RekindleError:
        return None


def same_example(content: bytes) -> bool:
    ours, theirs = our_sample(content), protobuf_sample(content)
    assert ours is None or theirs is None or ours == theirs
    return ours is not None and theirs is not None


@pytest.mark.parametrize(
    "count", [300, pytest.param(30_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_a_mutated_example_is_what_protobuf_reads_or_an_error(count: int) -> None:
    rng = np.random.default_rng(count)
    assert sum(same_example(mutated_example(rng)) for _ in range(count)) > count // 10


IMAGE, LABEL = feature(b"image/encoded", 1, b"\xff\xd8image"), feature(b"image/class/label", 3, 4)
OTHER_LABEL = feature(b"image/class/label", 3, 5)


def _inside(one: Field, *more: Field) -> Field:
    """A feature with more fields than its name and its value."""
    assert isinstance(one[2], list)
    return 1, 2, [*one[2], *more]


@pytest.mark.parametrize(
    "features",
    [
        [IMAGE, LABEL, OTHER_LABEL],
        [IMAGE, LABEL, _inside(OTHER_LABEL, (3, 0, 511))],  # which protobuf leaves out
        [_inside(IMAGE, (2, 2, [(1, 2, [(1, 2, b"other")])])), LABEL],  # joined
        [_inside(IMAGE, (1, 2, b"image")), LABEL],
        [(1, 2, [(1, 2, b"image/encoded"), (2, 2, [(1, 2, []), (3, 2, []), (1, 2, [(1, 2, b"x")])])]), LABEL],
    ],
    ids=["two", "two, one of them unknown", "two values", "two names", "three lists"],
)
def test_a_feature_that_other_readers_read_otherwise_is_refused(features: list[Field]) -> None:
    assert our_sample(message([(1, 2, [IMAGE, LABEL])])) == (b"\xff\xd8image", 4)
    assert our_sample(message([(1, 2, features)])) is None
