"""Whatever a collate function makes arrives as it was sent."""

import collections
import dataclasses
import decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rekindle.run import batch_pickle
from same import same
from test_layout import NUMPY_DTYPES, STRUCTURES, TORCH_DTYPES


def there_and_back(value, spare=0):
    encoded = batch_pickle.encode(value)
    memory = np.full(encoded.nbytes + spare, 0xA5, dtype=np.uint8)
    sizes = encoded.pack(memory)
    assert memory[encoded.nbytes :].tolist() == [0xA5] * spare
    return batch_pickle.decode(memory, sizes)


@given(STRUCTURES, st.integers(0, 100))
def test_any_structure_of_tensors_arrays_and_plain_values_comes_back(value, spare):
    assert same(there_and_back(value, spare), value)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize(
    "dtype", [*TORCH_DTYPES, torch.complex32, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_a_tensor_of_any_dtype_and_shape_comes_back(dtype, shape):
    count = int(np.prod(shape))
    ones = torch.ones(count * dtype.itemsize, dtype=torch.uint8).view(dtype).view(shape)
    assert same(there_and_back(ones), ones)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, ">f4", "U3", "S3", "M8[s]", object], ids=str)
def test_an_array_of_any_dtype_and_shape_comes_back(dtype, shape):
    array = np.zeros(shape, dtype=dtype)
    assert same(there_and_back(array), array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24).view(2, 3, 4).permute(2, 0, 1),
        torch.arange(24)[::5],
        torch.arange(24)[7:9],
        torch.ones(1).expand(4, 3),
        torch.arange(6).view(2, 3).t(),
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
    ids=["permuted", "strided", "offset", "expanded", "transposed", "channels_last"],
)
def test_a_tensor_that_does_not_lie_in_order_comes_back(tensor):
    assert same(there_and_back(tensor), tensor)


@pytest.mark.parametrize("format", [torch.channels_last, torch.contiguous_format], ids=str)
def test_the_order_in_memory_comes_back(format):
    """A loader for NVIDIA's GPUs collates to channels_last, and the model expects that."""
    images = torch.randn(2, 3, 4, 5).to(memory_format=format)
    assert there_and_back(images).is_contiguous(memory_format=format)
    assert there_and_back(images.permute(3, 0, 2, 1)).stride() == images.permute(3, 0, 2, 1).stride()
    assert there_and_back(images[:, :2]).is_contiguous()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(24)[::-5],
        np.broadcast_to(np.float32(1), (4, 3)),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
    ],
    ids=["transposed", "strided", "broadcast", "fortran"],
)
def test_an_array_that_does_not_lie_in_order_comes_back(array):
    assert same(there_and_back(array), array)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["conjugated", "negated", "requires_grad", "parameter"],
)
def test_a_tensor_that_is_more_than_its_bytes_comes_back(tensor):
    back = there_and_back([tensor])[0]
    assert same(back, tensor)
    assert back.requires_grad == tensor.requires_grad


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_sparse_tensor_comes_back():
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(there_and_back(sparse).to_dense(), torch.eye(3))


@dataclasses.dataclass
class Box:
    name: str
    tensor: torch.Tensor
    corners: dict


class SlottedBox:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_objects_of_any_class_come_back():
    box = there_and_back(Box("a", torch.arange(3), {"x": np.ones(2)}))
    assert (box.name, box.tensor.tolist(), box.corners["x"].tolist()) == ("a", [0, 1, 2], [1, 1])
    assert there_and_back(SlottedBox(5)).value == 5
    for value in (
        None,
        {1, 2},
        decimal.Decimal("1.1"),
        collections.OrderedDict(a=1),
        collections.Counter("aab"),
        range(3),
        2**100,
        slice(1, 2),
        len,
        Box,
    ):
        back = there_and_back(value)
        assert back == value
        assert type(back) is type(value)


def test_what_is_shared_stays_shared():
    tensor, array, inner = torch.arange(4), np.arange(4), [1]
    value = {"a": [tensor, tensor], "b": (array, array), "c": [inner, inner]}
    back = there_and_back(value)
    for first, second in back.values():
        assert first is second
    back["a"][0][0] = 9
    assert back["a"][1][0] == 9


def test_a_value_that_contains_itself_comes_back():
    ring = [torch.ones(1)]
    ring.append(ring)
    back = there_and_back(ring)
    assert back[1] is back


def test_large_data_lies_beside_the_pickle_and_is_not_copied_back():
    value = [torch.zeros(10_000), np.zeros(10_000, np.uint8)]
    encoded = batch_pickle.encode(value)
    assert len(encoded.stream) < 1_000
    memory = np.empty(encoded.nbytes, dtype=np.uint8)
    tensor, array = batch_pickle.decode(memory, encoded.pack(memory))
    tensor.fill_(1)
    array.fill(255)
    assert np.count_nonzero(memory == 255) >= 10_000
    assert np.count_nonzero(memory) >= 20_000 + 10_000


def test_what_was_sent_can_change_without_changing_what_arrived():
    tensor = torch.zeros(3)
    back = there_and_back([tensor])[0]
    tensor.fill_(1)
    assert back.tolist() == [0, 0, 0]


def test_tensors_that_arrive_are_aligned_for_any_use():
    encoded = batch_pickle.encode([torch.zeros(n, dtype=torch.uint8) for n in (1, 3, 65)] + [np.ones(2)])
    raw = np.empty(encoded.nbytes + 64, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    memory = raw[start : start + encoded.nbytes]
    for part in batch_pickle.decode(memory, encoded.pack(memory)):
        address = part.data_ptr() if isinstance(part, torch.Tensor) else part.ctypes.data
        assert address % 64 == 0


def test_what_cannot_be_sent_is_an_error_where_it_is_sent():
    with pytest.raises((AttributeError, TypeError), match=r"lambda|pickle|local"):
        batch_pickle.encode([lambda: 1])
