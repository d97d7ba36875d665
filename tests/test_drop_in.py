"""Side by side with torch's DataLoader: the same arguments give the same batches."""

import copy
import inspect
import itertools
import multiprocessing
import os
import pickle
import random
import time
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import rekindle as rk
from same import same

Torch = torch.utils.data.DataLoader
WORKERS = pytest.mark.parametrize("num_workers", [0, 2])
Pair = namedtuple("Pair", ["image", "name"])


# Data sets.


class Shaped(Dataset):
    """Samples of a kind of structure, all derived from their index."""

    def __init__(self, kind="tensor", size=23):
        self.kind, self.size = kind, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if not 0 <= index < self.size:
            raise IndexError(index)
        image = torch.full((3, 2), float(index))
        return {
            "tensor": lambda: image,
            "tuple": lambda: (image, index),
            "list": lambda: [np.full(2, index, np.int16), float(index)],
            "named tuple": lambda: Pair(image, f"{index}.png"),
            "dict": lambda: {"image": image, "id": index, "name": f"{index}", "ok": index > 3},
            "nested": lambda: ({"a": (image, [index, str(index)])}, Pair((image, b"x"), "n")),
            "string": lambda: f"sample {index}",
            "bytes": lambda: b"%d" % index,
            "bool": lambda: index % 2 == 0,
            "float": lambda: index / 2,
            "numpy scalar": lambda: np.float32(index),
            "array": lambda: np.full((2, 2), index, np.uint8),
            "bfloat16": lambda: image.to(torch.bfloat16),
            "complex": lambda: image * 1j,
            "empty": lambda: torch.empty(0, 3),
            "large": lambda: torch.full((64, 64), index),
            "mixed types": lambda: index if index < 6 else float(index),
            "ordered dict": lambda: OrderedDict(a=index),
        }[self.kind]()


KINDS = [
    "tensor", "tuple", "list", "named tuple", "dict", "nested", "string", "bytes", "bool", "float",
    "numpy scalar", "array", "bfloat16", "complex", "empty", "large", "ordered dict",
]  # fmt: skip


class Ragged(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.arange(index + 1)


class Keyed(Dataset):
    """A data set that is asked for other things than numbers."""

    def __len__(self):
        return 4

    def __getitem__(self, key):
        return f"{type(key).__name__} {key}"


class AtOnce(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError("asked for one sample alone")

    def __getitems__(self, indices):
        return [(index, len(indices)) for index in indices]


class Broken(Dataset):
    """Fails at some samples."""

    def __init__(self, bad=(5,), error=ValueError):
        self.bad, self.error = bad, error

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error(f"cannot read number {index}")
        return index


class OddError(Exception):
    """An exception that cannot be made from one string."""

    def __init__(self, code, text):
        super().__init__(code, text)


class OddlyBroken(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise OddError(index, "odd")


class WhoAmI(Dataset):
    """Samples that say which worker made them."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        info = get_worker_info()
        if info is None:
            return index, -1, -1, -1
        assert info.dataset is not None
        return index, info.id, info.num_workers, info.seed


class Slow(Dataset):
    def __init__(self, size=4, seconds=5.0):
        self.size, self.seconds = size, seconds

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == 0:
            time.sleep(self.seconds)
        return index


class WithEpoch(Dataset):
    """A data set that the training loop changes between epochs."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.epoch * 100 + index


class Drawing(Dataset):
    """Draws from all three global generators, as foreign transforms do."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(2)


class Stream(IterableDataset):
    def __init__(self, size=10):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class Sharded(IterableDataset):
    """Each worker has its share, the first a longer one."""

    def __init__(self, sizes=(11, 4)):
        self.sizes = sizes

    def __iter__(self):
        info = get_worker_info()
        if info is None:
            return iter(range(sum(self.sizes)))
        return iter(range(info.id * 100, info.id * 100 + self.sizes[info.id]))


class BrokenStream(IterableDataset):
    def __iter__(self):
        yield 1
        yield 2
        raise KeyError("no third")


class Unsized(Dataset):
    def __getitem__(self, index):
        return index


class OwnSampler:
    """Any iterable of indices will do."""

    def __init__(self, indices):
        self.indices = indices

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


def as_is(samples):
    return samples


def summed(samples):
    return {"sum": sum(samples), "samples": tuple(samples), "kind": type(samples).__name__}


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Bag:
    def __init__(self, samples):
        self.tensor = torch.stack(samples)

    def __eq__(self, other):
        return type(other) is Bag and torch.equal(self.tensor, other.tensor)

    __hash__ = None


class Numbered:
    """A worker_init_fn whose effect can be seen in samples."""

    def __call__(self, worker):
        os.environ["REKINDLE_TEST_WORKER"] = str(worker + 10)


class SeesEnvironment(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return index, int(os.environ.get("REKINDLE_TEST_WORKER", "-1"))


def fail_to_start(worker):
    raise OSError(f"worker {worker} found no disk")


# Helpers.


def assert_same_epochs(dataset, epochs=2, **arguments):
    """The batches of some epochs, one loader after the other, are the same."""
    ours, theirs = rk.DataLoader(dataset, **arguments), Torch(dataset, **arguments)
    for _ in range(epochs):
        got, expected = list(ours), list(theirs)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert same(one, other), f"{one!r} is not {other!r}"


def seeded_epochs(make, epochs=2, seed_before=True):
    """The batches of a loader made under a fixed global seed, and what the generator is at the end."""
    if seed_before:
        torch.manual_seed(7)
    loader = make()
    if not seed_before:
        torch.manual_seed(7)
    batches = [list(loader) for _ in range(epochs)]
    return batches, torch.get_rng_state()


# What a batch is.


@WORKERS
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_structure_are_torchs(kind, num_workers):
    assert_same_epochs(Shaped(kind), epochs=1, batch_size=5, num_workers=num_workers)


@WORKERS
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 23, 40])
def test_batches_of_any_size_are_torchs(batch_size, drop_last, num_workers):
    assert_same_epochs(Shaped("tuple"), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)


@WORKERS
@pytest.mark.parametrize("kind", ["tensor", "dict", "string"])
def test_samples_come_alone_without_a_batch_size(kind, num_workers):
    assert_same_epochs(Shaped(kind, 7), batch_size=None, num_workers=num_workers)


@WORKERS
def test_a_sampler_of_lists_without_a_batch_size_reaches_the_data_set(num_workers):
    tensors = torch.arange(20).view(10, 2)
    assert_same_epochs(
        tensors,
        batch_size=None,
        sampler=BatchSampler(SequentialSampler(range(10)), 3, False),
        num_workers=num_workers,
    )


@WORKERS
@pytest.mark.parametrize("collate_fn", [as_is, summed])
def test_a_collate_function_may_return_anything(collate_fn, num_workers):
    assert_same_epochs(list(range(10)), batch_size=3, collate_fn=collate_fn, num_workers=num_workers)


@WORKERS
def test_a_collate_function_may_return_objects_with_tensors(num_workers):
    assert_same_epochs(Shaped("large"), batch_size=4, collate_fn=Bag, num_workers=num_workers, epochs=1)


@WORKERS
def test_ragged_samples_raise_torchs_own_error_by_default(num_workers):
    with pytest.raises(RuntimeError) as theirs:
        list(Torch(Ragged(), batch_size=2, num_workers=num_workers))
    with pytest.raises(RuntimeError) as ours:
        list(rk.DataLoader(Ragged(), batch_size=2, num_workers=num_workers))
    assert str(ours.value).splitlines()[-1] == str(theirs.value).splitlines()[-1]
    assert "stack expects each tensor to be equal size" in str(ours.value)


@WORKERS
def test_ragged_samples_can_be_padded(num_workers):
    assert_same_epochs(Ragged(), batch_size=4, collate_fn=padded, num_workers=num_workers)


@WORKERS
def test_samples_that_change_their_type_are_collated_as_torch_does(num_workers):
    assert_same_epochs(Shaped("mixed types"), batch_size=4, num_workers=num_workers, epochs=1)


@WORKERS
def test_get_items_is_asked_for_whole_batches(num_workers):
    assert_same_epochs(AtOnce(), batch_size=4, num_workers=num_workers)


@WORKERS
def test_tensors_in_memory_are_gathered_as_torch_does(num_workers):
    dataset = TensorDataset(torch.randn(20, 3), torch.arange(20), torch.rand(20) > 0.5)
    assert_same_epochs(dataset, batch_size=6, num_workers=num_workers)
    assert_same_epochs(
        dataset,
        batch_size=6,
        num_workers=num_workers,
        sampler=OwnSampler([3, 19, 3, 0, 7, 1]),
    )


@WORKERS
def test_indices_may_count_from_the_end(num_workers):
    dataset = TensorDataset(torch.arange(20))
    assert_same_epochs(dataset, batch_size=2, sampler=[-1, 3, -20], num_workers=num_workers)


@WORKERS
def test_an_index_out_of_range_is_an_index_error(num_workers):
    for dataset in (TensorDataset(torch.arange(20)), Shaped("tuple")):
        with pytest.raises(IndexError):
            list(rk.DataLoader(dataset, sampler=[3, 99], num_workers=num_workers))


def test_a_sample_that_requires_grad_after_the_first_is_collated_as_torch_does():
    samples = [torch.ones(2), torch.ones(2, requires_grad=True)]
    (batch,) = rk.DataLoader(samples, batch_size=2)
    assert batch.requires_grad
    for loader in (rk.DataLoader, Torch):  # Neither can send a batch with a history to another process.
        with pytest.raises(RuntimeError, match=r"requires.grad"):
            list(loader(samples, batch_size=2, num_workers=1))


@WORKERS
def test_a_plain_list_is_a_data_set(num_workers):
    assert_same_epochs([1.5, 2.5, 3.5], batch_size=2, num_workers=num_workers)


@WORKERS
def test_an_empty_data_set_gives_no_batch(num_workers):
    assert list(rk.DataLoader([], batch_size=2, num_workers=num_workers)) == []


@WORKERS
def test_a_batch_belongs_to_whoever_holds_it(num_workers):
    loader = rk.DataLoader(Shaped("large"), batch_size=2, num_workers=num_workers)
    held = list(itertools.chain(loader, loader))
    for batch in held:
        batch += 1
    assert [batch[0, 0, 0].item() for batch in held] == [*range(1, 24, 2)] * 2


# In which order.


@pytest.mark.parametrize(("num_workers", "persistent_workers"), [(0, False), (2, False), (2, True)])
def test_with_a_generator_the_order_and_the_generators_state_are_torchs(num_workers, persistent_workers):
    ours, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    arguments = {
        "batch_size": 4,
        "shuffle": True,
        "num_workers": num_workers,
        "persistent_workers": persistent_workers,
    }
    our_loader = rk.DataLoader(range(17), generator=ours, **arguments)
    their_loader = Torch(range(17), generator=theirs, **arguments)
    for _ in range(3):
        assert same(list(our_loader), list(their_loader))
        assert torch.equal(ours.get_state(), theirs.get_state())


@WORKERS
@pytest.mark.parametrize("seed_before", [False, True], ids=["seed after", "seed before"])
@pytest.mark.parametrize(
    "make_sampler",
    [
        lambda: RandomSampler(range(20)),
        lambda: RandomSampler(range(20), replacement=True, num_samples=50),
        lambda: WeightedRandomSampler([1.0, 5.0, 2.0, 0.5] * 5, 30),
        lambda: SubsetRandomSampler([3, 5, 7, 11, 13]),
    ],
    ids=["random", "replacement", "weighted", "subset"],
)
def test_a_random_sampler_under_a_global_seed_gives_torchs_order(make_sampler, seed_before, num_workers):
    def make(loader):
        return loader(range(20), batch_size=4, sampler=make_sampler(), num_workers=num_workers)

    ours, our_state = seeded_epochs(lambda: make(rk.DataLoader), seed_before=seed_before)
    theirs, their_state = seeded_epochs(lambda: make(Torch), seed_before=seed_before)
    assert same(ours, theirs)
    assert torch.equal(our_state, their_state)


@WORKERS
def test_a_sampler_of_ones_own_is_followed(num_workers):
    assert_same_epochs(
        Shaped("tuple"), batch_size=3, sampler=OwnSampler([5, 5, 0, 22, 1]), num_workers=num_workers
    )
    assert_same_epochs(Shaped("tuple"), batch_size=2, sampler=[5, 5, 0, 22, 1], num_workers=num_workers)


@WORKERS
def test_a_batch_sampler_may_give_batches_of_any_size(num_workers):
    batches = [[0, 1], [5], [2, 2, 2, 7, 8, 9, 10], [3, 4], [22, 21, 20, 19]]
    assert_same_epochs(Shaped("dict"), batch_sampler=batches, num_workers=num_workers)
    assert_same_epochs(Shaped("large"), batch_sampler=OwnSampler(batches), num_workers=num_workers)


@WORKERS
def test_a_sampler_may_give_keys_that_are_no_integers(num_workers):
    assert_same_epochs(Keyed(), batch_size=2, sampler=["a", ("b", 1), 2.5, None], num_workers=num_workers)


@WORKERS
def test_shuffled_epochs_have_every_sample_once_and_differ(num_workers):
    loader = rk.DataLoader(range(50), batch_size=8, shuffle=True, num_workers=num_workers)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_a_global_seed_makes_a_shuffled_run_repeatable_with_any_number_of_workers():
    def make(num_workers):
        return lambda: rk.DataLoader(range(50), batch_size=8, shuffle=True, num_workers=num_workers)

    runs = [seeded_epochs(make(num_workers))[0] for num_workers in (0, 2, 0)]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


def test_batches_out_of_order_are_all_there():
    loader = rk.DataLoader(
        Slow(8, 0.5), batch_size=1, num_workers=2, in_order=False, multiprocessing_context="fork"
    )
    for _ in range(2):
        got = [batch.item() for batch in loader]
        assert sorted(got) == list(range(8))
        assert got[0] != 0, "a slow batch held up the others"


# Iterable data sets.


@WORKERS
@pytest.mark.parametrize(
    ("batch_size", "drop_last"), [(None, False), *itertools.product([1, 3, 10, 30], [False, True])]
)
def test_a_stream_is_batched_as_torch_does(batch_size, drop_last, num_workers):
    assert_same_epochs(Stream(), batch_size=batch_size, drop_last=drop_last, num_workers=num_workers)


@pytest.mark.parametrize("sizes", [(11, 4), (4, 11), (0, 5), (5, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("batch_size", [None, 2, 3])
def test_uneven_shares_of_workers_are_dealt_as_torch_does(sizes, batch_size):
    assert_same_epochs(Sharded(sizes), batch_size=batch_size, num_workers=2)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_streams_start_anew_in_every_epoch(persistent_workers):
    assert_same_epochs(
        Sharded(), epochs=3, batch_size=4, num_workers=2, persistent_workers=persistent_workers
    )


@WORKERS
def test_an_exception_in_a_stream_keeps_its_type(num_workers):
    iterator = iter(rk.DataLoader(BrokenStream(), num_workers=num_workers))
    assert next(iterator).item() == 1
    with pytest.raises(KeyError, match="no third"):
        list(iterator)


def test_a_stream_without_workers_leaves_the_global_generators_alone():
    class DrawingStream(IterableDataset):
        def __iter__(self):
            for _ in range(40):
                yield random.random(), np.random.rand(), torch.rand(1)

    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    loader = rk.DataLoader(DrawingStream(), batch_size=1, seed=1)
    batches = list(loader)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    assert len({batch[0].item() for batch in batches}) == 40
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


# Workers.


@WORKERS
def test_worker_info_is_torchs_in_every_sample(num_workers):
    def batches(loader):
        generator = torch.Generator().manual_seed(5)
        made = loader(WhoAmI(), batch_size=3, num_workers=num_workers, generator=generator)
        return [list(made), list(made)]

    assert same(batches(rk.DataLoader), batches(Torch))
    assert get_worker_info() is None


def test_worker_init_fn_runs_in_every_worker():
    assert_same_epochs(SeesEnvironment(), batch_size=2, num_workers=2, worker_init_fn=Numbered(), epochs=2)
    assert "REKINDLE_TEST_WORKER" not in os.environ


def test_an_exception_in_worker_init_fn_is_raised_here():
    loader = rk.DataLoader(range(4), num_workers=2, worker_init_fn=fail_to_start)
    with pytest.raises(OSError, match="found no disk"):
        list(loader)


@pytest.mark.parametrize(
    "context",
    ["fork", "spawn", multiprocessing.get_context("forkserver"), multiprocessing.get_context("fork")],
    ids=["fork by name", "spawn by name", "forkserver as object", "fork as object"],
)
def test_a_start_method_may_be_given_by_name_or_as_a_context(context):
    loader = rk.DataLoader(Shaped("tuple", 6), batch_size=4, num_workers=1, multiprocessing_context=context)
    assert same(list(loader), list(Torch(Shaped("tuple", 6), batch_size=4)))
    given = context if isinstance(context, str) else context.get_start_method()
    assert loader.multiprocessing_context.get_start_method() == given


@pytest.mark.parametrize("prefetch_factor", [1, 5])
def test_prefetch_factor_changes_no_batch(prefetch_factor):
    assert_same_epochs(Shaped("tuple"), batch_size=2, num_workers=2, prefetch_factor=prefetch_factor)


def test_persistent_workers_are_the_same_processes_in_the_next_epoch():
    class Pid(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return os.getpid()

    loader = rk.DataLoader(Pid(), batch_size=4, num_workers=2, persistent_workers=True)
    first, second = torch.cat(list(loader)), torch.cat(list(loader))
    assert set(first.tolist()) == set(second.tolist())
    assert os.getpid() not in first.tolist()


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_changed_data_set_is_seen_unless_workers_persist(persistent_workers):
    def epochs(loader):
        dataset = WithEpoch()
        made = loader(dataset, batch_size=3, num_workers=2, persistent_workers=persistent_workers)
        batches = []
        for epoch in range(3):
            dataset.set_epoch(epoch)
            batches.append(torch.cat(list(made)).tolist())
        return batches

    ours = epochs(rk.DataLoader)
    assert ours == epochs(Torch)
    assert ours[2][0] == (0 if persistent_workers else 200)


def test_without_workers_a_changed_data_set_is_seen_at_once():
    dataset = WithEpoch()
    iterator = iter(rk.DataLoader(dataset, batch_size=2))
    assert next(iterator).tolist() == [0, 1]
    dataset.set_epoch(1)
    assert next(iterator).tolist() == [102, 103]


# Exceptions.


@WORKERS
@pytest.mark.parametrize("error", [ValueError, KeyError, FileNotFoundError, RuntimeError])
def test_an_exception_keeps_its_type_and_names_the_sample(error, num_workers):
    loader = rk.DataLoader(Broken((5,), error), batch_size=4, num_workers=num_workers)
    with pytest.raises(error) as caught:
        list(loader)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "cannot read number 5" in told
    assert "sample 5" in told
    if num_workers:
        assert "in DataLoader worker process" in told
        assert "Original Traceback" in told
        assert "in __getitem__" in told


@WORKERS
def test_an_exception_that_cannot_be_rebuilt_still_says_what_happened(num_workers):
    expected = RuntimeError if num_workers else OddError
    with pytest.raises(expected, match="odd"):
        list(rk.DataLoader(OddlyBroken(), num_workers=num_workers))


@WORKERS
def test_iteration_goes_on_after_an_exception_as_torchs_does(num_workers):
    def outcome(loader):
        iterator = iter(loader(Broken((1, 9)), batch_size=2, num_workers=num_workers))
        seen = []
        while True:
            try:
                seen.append(next(iterator).tolist())
            except ValueError:
                seen.append("failed")
            except StopIteration:
                return seen

    ours = outcome(rk.DataLoader)
    assert ours == outcome(Torch)
    assert ours == ["failed", [2, 3], [4, 5], [6, 7], "failed", [10, 11]]


@WORKERS
def test_a_loader_can_be_used_again_after_an_exception(num_workers):
    dataset = Broken((5,))
    loader = rk.DataLoader(dataset, batch_size=4, num_workers=num_workers)
    with pytest.raises(ValueError, match="number 5"):
        list(loader)
    dataset.bad = ()
    assert torch.cat(list(loader)).tolist() == list(range(12))


@WORKERS
def test_an_exception_in_the_collate_function_keeps_its_type(num_workers):
    with pytest.raises(TypeError, match="unsupported operand"):
        list(rk.DataLoader(["a", "b"], collate_fn=summed, num_workers=num_workers))


@WORKERS
def test_an_exception_in_the_sampler_keeps_its_type(num_workers):
    def sampler():
        yield 1
        raise LookupError("no second index")

    class Failing:
        def __iter__(self):
            return sampler()

    loader = rk.DataLoader(range(4), sampler=Failing(), num_workers=num_workers)
    with pytest.raises(LookupError, match="no second index"):
        list(loader)


@WORKERS
def test_what_no_collate_function_understands_raises_torchs_error(num_workers):
    with pytest.raises(TypeError, match="default_collate: batch must contain tensors"):
        list(rk.DataLoader([object(), object()], num_workers=num_workers))


def test_a_timeout_is_an_error_in_time():
    loader = rk.DataLoader(Slow(), num_workers=1, timeout=0.3)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds"):
        next(iter(loader))
    assert time.monotonic() - started < 3


# The loader itself.


def test_every_argument_is_in_torchs_place_with_torchs_default():
    ours = inspect.signature(rk.DataLoader.__init__).parameters
    theirs = inspect.signature(Torch.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        assert ours[name].default == parameter.default, name
    added = list(ours)[len(theirs) :]
    assert added[:4] == ["seed", "executor", "on_error", "error_budget"]
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in added)


def test_arguments_may_be_given_by_position():
    arguments = (range(9), 4, False, None, None, 0, as_is, False, True, 0, None, None, None)
    assert list(rk.DataLoader(*arguments)) == list(Torch(*arguments)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_loader_is_torchs_loader_with_its_attributes():
    loader = rk.DataLoader(range(9), batch_size=4, num_workers=2, shuffle=True)
    theirs = Torch(range(9), batch_size=4, num_workers=2, shuffle=True)
    assert isinstance(loader, Torch)
    for name in ("batch_size", "num_workers", "drop_last", "timeout", "prefetch_factor",
                 "persistent_workers", "pin_memory", "in_order", "collate_fn", "worker_init_fn",
                 "generator", "multiprocessing_context"):  # fmt: skip
        assert getattr(loader, name) == getattr(theirs, name), name
    assert isinstance(loader.sampler, type(theirs.sampler))
    assert isinstance(loader.batch_sampler, type(theirs.batch_sampler))
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


INVALID = [
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"persistent_workers": True},
    {"num_workers": 1, "prefetch_factor": -1},
    {"shuffle": True, "sampler": [1]},
    {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True},
    {"batch_sampler": [[1]], "drop_last": True},
    {"batch_sampler": [[1]], "sampler": [1]},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -1},
    {"batch_size": 1.5},
    {"num_workers": 1, "multiprocessing_context": "nonsense"},
    {"multiprocessing_context": "fork"},
]


@pytest.mark.parametrize("arguments", INVALID, ids=str)
def test_arguments_that_torch_refuses_are_refused_in_its_words(arguments):
    with pytest.raises((ValueError, TypeError)) as theirs:
        Torch(range(4), **arguments)
    with pytest.raises(type(theirs.value)) as ours:
        rk.DataLoader(range(4), **arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "arguments", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}], ids=str
)
def test_a_stream_has_no_order_to_choose(arguments):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011 - torch's own message is the measure
        Torch(Stream(), **arguments)
    with pytest.raises(ValueError) as ours:  # noqa: PT011
        rk.DataLoader(Stream(), **arguments)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"seed": -1},
        {"seed": 2**63},
        {"seed": 1.5},
        {"executor": "coroutines"},
        {"on_error": "ignore"},
        {"error_budget": 2},
        {"error_budget": "1%"},
    ],
    ids=str,
)
def test_wrong_arguments_of_our_own_are_named_with_their_value(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(rk.ArgumentError, match=name) as caught:
        rk.DataLoader(range(4), **arguments)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"sampler": [1, 2, 3], "batch_size": 2},
        {"batch_sampler": [[1], [2, 3]]},
    ],
    ids=str,
)
def test_the_length_is_torchs(arguments):
    loader = rk.DataLoader(range(10), **arguments)
    assert len(loader) == len(Torch(range(10), **arguments)) == len(list(loader))
    assert len(iter(loader)) == len(loader)


def test_a_data_set_without_length_has_no_loader_length():
    with pytest.raises(TypeError):
        len(rk.DataLoader(Stream()))
    sampled = rk.DataLoader(Unsized(), sampler=[4, 2], batch_size=2)
    assert [batch.tolist() for batch in sampled] == [[4, 2]]


@WORKERS
def test_two_passes_at_once_do_not_disturb_each_other(num_workers):
    loader = rk.DataLoader(range(10), batch_size=2, num_workers=num_workers)
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([n, n + 1], [n, n + 1]) for n in range(0, 10, 2)]


@WORKERS
def test_a_pass_within_a_pass_is_a_whole_one(num_workers):
    loader = rk.DataLoader(range(4), batch_size=2, num_workers=num_workers)
    seen = [(a.tolist(), torch.cat(list(loader)).tolist()) for a in loader]
    assert seen == [([0, 1], [0, 1, 2, 3]), ([2, 3], [0, 1, 2, 3])]


@WORKERS
def test_after_breaking_out_the_next_pass_starts_at_the_beginning(num_workers):
    loader = rk.DataLoader(range(40), batch_size=2, num_workers=num_workers)
    for _ in range(3):
        for batch in loader:
            assert batch.tolist() == [0, 1]
            break
    assert torch.cat(list(loader)).tolist() == list(range(40))


def test_after_breaking_out_persistent_workers_start_at_the_beginning():
    loader = rk.DataLoader(range(40), batch_size=2, num_workers=2, persistent_workers=True)
    for _ in range(3):
        assert next(iter(loader)).tolist() == [0, 1]
    assert torch.cat(list(loader)).tolist() == list(range(40))


@WORKERS
def test_an_iterator_at_its_end_stays_there(num_workers):
    iterator = iter(rk.DataLoader(range(4), batch_size=2, num_workers=num_workers))
    assert len(list(iterator)) == 2
    assert list(iterator) == []
    with pytest.raises(StopIteration):
        next(iterator)


@WORKERS
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda it: pickle.loads(pickle.dumps(it))],
    ids=["deepcopy", "copy", "pickle"],
)  # fmt: skip
def test_a_copy_of_a_loader_gives_the_same_batches(copied, num_workers):
    loader = rk.DataLoader(Shaped("dict"), batch_size=4, shuffle=True, num_workers=num_workers)
    other = copied(loader)
    assert other.seed == loader.seed
    first = list(loader)
    assert same(list(other), first)
    # And one made while workers are at work or waiting.
    iterator = iter(loader)
    next(iterator)
    busy = copied(loader)
    assert len(list(busy)) == len(first)
    assert len(list(iterator)) == len(first) - 1


@pytest.mark.parametrize("shuffle", [False, True])
def test_iterating_without_workers_leaves_the_global_generators_alone(shuffle):
    loader = rk.DataLoader(Drawing(), batch_size=2, shuffle=shuffle)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    epochs = [list(loader), list(loader)]
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert before[0] == after[0]
    assert same(before[1], after[1])
    assert torch.equal(before[2], after[2])
    # The generators that it gave to the data set were good ones, and new in every epoch.
    drawn = torch.cat([batch[1] for epoch in epochs for batch in epoch]).tolist()
    assert len(set(drawn)) == 18


def test_breaking_out_without_workers_leaves_the_global_generators_alone():
    before = random.getstate()
    for _ in rk.DataLoader(Drawing(), batch_size=2, seed=3):
        assert random.getstate() == before
        break
    assert random.getstate() == before


@WORKERS
def test_the_batch_just_yielded_is_described(num_workers):
    loader = rk.DataLoader(range(7), batch_size=3, num_workers=num_workers, shuffle=True, seed=2)
    with pytest.raises(AttributeError, match="none has been yet"):
        _ = loader.batch
    for epoch in range(2):
        for step, batch in enumerate(loader):
            info = loader.batch
            assert info.ids.tolist() == batch.tolist()
            assert (info.epoch, info.step) == (epoch, step)
            assert info.weights.tolist() == [1.0] * len(batch)
            assert info.fresh.all()
