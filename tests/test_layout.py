"""Samples written straight to their rows are the batch that torch's `default_collate` makes."""

from collections import OrderedDict, namedtuple
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import default_collate

from naming import named
from rekindle.run import batch_layout
from same import same

Point = namedtuple("Point", ["x", "y"])


class Picture(NamedTuple):
    pixels: object
    label: object
    name: object


NUMPY_DTYPES = [
    np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128,
]  # fmt: skip
TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128,
]  # fmt: skip
# Torch's own collation of scalars of this one type fails: "an integer is required".
SCALAR_DTYPES = [dtype for dtype in NUMPY_DTYPES if dtype is not np.uint64]

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
LONG = st.integers(-(2**63), 2**63 - 1)


def _random_bytes(draw, nbytes):
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.Generator(np.random.PCG64(seed)).bytes(nbytes)


def _array_of(dtype, shape, transposed):
    """A strategy of arrays of a dtype and shape; `transposed` ones do not lie in order in memory."""

    @st.composite
    def one(draw):
        dt = np.dtype(dtype)
        size = int(np.prod(shape))
        if dt == np.bool_:
            flat = np.frombuffer(_random_bytes(draw, size), dtype=np.uint8) % 2 == 1
        else:
            flat = np.frombuffer(_random_bytes(draw, size * dt.itemsize), dtype=dt).copy()
        array = flat.reshape(shape)
        return np.asfortranarray(array) if transposed else array

    return one()


def _tensor_of(dtype, shape, transposed):
    @st.composite
    def one(draw):
        size = int(np.prod(shape))
        flat = torch.frombuffer(
            bytearray(_random_bytes(draw, max(1, size * dtype.itemsize))), dtype=torch.uint8
        )[: size * dtype.itemsize]
        flat = flat % 2 == 1 if dtype == torch.bool else flat.view(dtype)
        tensor = flat.reshape(shape)
        if transposed:
            tensor = tensor.movedim(0, -1).contiguous().movedim(-1, 0) if tensor.ndim else tensor
        return tensor

    return one()


def _scalar_of(dtype):
    return hnp.from_dtype(np.dtype(dtype)).map(np.dtype(dtype).type)


def leaves():
    """Strategies of strategies: what all samples of a dataset have at one place."""
    return st.one_of(
        st.builds(_array_of, st.sampled_from(NUMPY_DTYPES), SHAPES, st.booleans()),
        st.builds(_tensor_of, st.sampled_from(TORCH_DTYPES), SHAPES, st.booleans()),
        st.sampled_from(SCALAR_DTYPES).map(_scalar_of),
        st.just(LONG),
        st.just(st.floats()),
        st.just(st.booleans()),
        st.just(st.text(max_size=5)),
        st.just(st.binary(max_size=5)),
    )


def branches(parts):
    return st.one_of(
        st.lists(parts, max_size=3).map(lambda inner: st.tuples(*inner)),
        st.lists(parts, max_size=3).map(lambda inner: st.tuples(*inner).map(list)),
        st.lists(parts, min_size=2, max_size=2).map(
            lambda inner: st.tuples(*inner).map(lambda values: Point(*values))
        ),
        st.lists(parts, min_size=3, max_size=3).map(
            lambda inner: st.tuples(*inner).map(lambda values: Picture(*values))
        ),
        st.dictionaries(st.sampled_from(["image", "label", 3, ("a", 1)]), parts, max_size=3).map(
            lambda inner: st.fixed_dictionaries(inner)
        ),
    )


STRUCTURES = st.recursive(leaves(), branches, max_leaves=6).flatmap(
    lambda sample: st.lists(sample, min_size=1, max_size=5)
)


def collate(samples, rows=None):
    """The batch, each sample written to its row, as workers do it."""
    spec = batch_layout.describe(samples[0])
    assert spec is not None, "a sample that is not understood"
    arranged = batch_layout.Layout(spec, rows or len(samples))
    memory = np.full(arranged.nbytes, 0xA5, dtype=np.uint8)
    tensors = arranged.tensors(memory, len(samples))
    columns = batch_layout.columns(samples, spec)
    for number, (leaf, column) in enumerate(zip(arranged.leaves, columns, strict=True)):
        if tensors[number] is None:
            tensors[number] = batch_layout.check_strings(leaf, column)
        else:
            batch_layout.write(leaf, column, batch_layout.writable(leaf, tensors[number]))
    return batch_layout.assemble(spec, tensors)


@settings(max_examples=400)
@given(STRUCTURES)
def test_any_batch_is_exactly_that_of_default_collate(samples):
    assert same(collate(samples), default_collate(samples))


@given(STRUCTURES, st.integers(0, 7))
def test_a_layout_may_have_more_rows_than_a_batch(samples, more):
    assert same(collate(samples, len(samples) + more), default_collate(samples))


@pytest.mark.parametrize("dtype", SCALAR_DTYPES)
def test_scalars_of_every_numpy_type_are_those_of_default_collate(dtype):
    samples = [dtype(0), dtype(1), dtype(1)]
    assert same(collate(samples), default_collate(samples))


def test_scalars_that_torch_cannot_collate_keep_their_type_too():
    assert same(collate([np.uint64(2**64 - 1)]), torch.from_numpy(np.array([2**64 - 1], np.uint64)))


def test_parts_of_a_batch_do_not_overlap():
    spec = batch_layout.describe({"a": torch.ones(3), "b": 1, "c": np.ones((2, 2), np.int16), "d": "x"})
    arranged = batch_layout.Layout(spec, 5)
    memory = np.zeros(arranged.nbytes, dtype=np.uint8)
    for number, tensor in enumerate(arranged.tensors(memory, 5)):
        if tensor is not None:
            before = np.count_nonzero(memory)
            tensor.view(torch.uint8).fill_(number + 1)
            assert np.count_nonzero(memory) - before == tensor.nbytes


def test_tensors_lie_in_the_given_memory():
    arranged = batch_layout.Layout(batch_layout.describe(torch.zeros(4)), 2)
    memory = np.zeros(arranged.nbytes, dtype=np.uint8)
    (tensor,) = arranged.tensors(memory, 2)
    tensor.fill_(float("nan"))
    assert np.count_nonzero(memory) == 16


@pytest.mark.parametrize(
    "sample",
    [
        None,
        object(),
        {1, 2},
        OrderedDict(a=1),
        np.array(["text"]),
        np.array([None]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.array([1], dtype=">f4"),
        np.longdouble(1),
        np.timedelta64(1, "s"),
        torch.ones(2).to_sparse(),
        torch.ones(2, requires_grad=True),
        torch.tensor([1j]).conj(),
        torch.nn.Parameter(torch.ones(1)),
        torch.ones(1, device="meta"),
        1j,
        (1, (2, None)),
        {"a": [object()]},
    ],
    ids=named,
)
def test_what_only_the_collate_function_understands_is_left_to_it(sample):
    assert batch_layout.describe(sample) is None


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2), torch.ones(1)),  # would broadcast
        (torch.ones(2), torch.ones(2, dtype=torch.float64)),
        (torch.ones(2), np.ones(2, np.float32)),
        (np.ones(2), np.ones(3)),
        (np.ones((2, 2)), np.ones(2)),  # would broadcast
        (np.ones((2, 2)), np.ones((2, 1))),
        (np.ones((2, 2)), np.ones((2, 2, 1))),
        (np.ones(2), np.array(1.0)),
        (np.array(1.0), np.ones(2)),
        (np.ones(2), np.ones(2, ">f8")),
        (np.ones(2), np.float64(1)),
        (np.ones(2), np.ones(2, np.float32)),
        (np.ones(2), [1.0, 1.0]),
        (1, 1.0),
        (1, True),
        (True, 1),
        (1.0, 1),
        (1.0, np.float64(1)),
        (np.float64(1), 1.0),
        (np.float32(1), np.float64(1)),
        (1, 2**63),
        (1, None),
        (1, "1"),
        ("1", 1),
        ("1", b"1"),
        ((1, 2), (1,)),
        ((1,), (1, 2)),
        ((1, 2), [1, 2]),
        (Point(1, 2), (1, 2)),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        ({"a": (1, "x")}, {"a": (1, 2)}),
        ((1, 2), None),
        ({"a": 1}, None),
    ],
    ids=repr,
)
def test_a_sample_unlike_the_first_is_a_mismatch(first, other):
    with pytest.raises(batch_layout.MismatchError):
        collate([first, other, first])


def test_arrays_of_other_lengths_that_add_up_to_the_rows_are_a_mismatch():
    with pytest.raises(batch_layout.MismatchError):
        collate([np.ones(2), np.ones(1), np.ones(3)])


def test_a_dict_with_its_keys_in_another_order_is_no_mismatch():
    samples = [{"a": 1, "b": 2.0}, {"b": 4.0, "a": 3}]
    assert same(collate(samples), default_collate(samples))


def test_a_tensor_that_requires_grad_after_the_first_does_not_slip_through():
    samples = [torch.ones(2), torch.ones(2, requires_grad=True)]
    assert default_collate(samples).requires_grad
    with pytest.raises(batch_layout.MismatchError):
        collate(samples)


def test_a_conjugated_tensor_after_the_first_gives_its_own_values():
    samples = [torch.tensor([1j]), torch.tensor([1j]).conj()]
    assert torch.equal(collate(samples), default_collate(samples))
